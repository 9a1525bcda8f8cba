"""`lorarl evaluate`: the score of an adapter beside its base model, on the same rows."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import API_VERSION, KIND, LoRARLJobSpec, RolloutSpec
from lorarl_trainer.adapters.intervals import Interval, mean_interval, pass_at
from lorarl_trainer.adapters.model import AdaptedModel, Decoding, load_adapted
from lorarl_trainer.adapters.source import Source, find_adapter
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.rewards.scorer import open_scorers
from lorarl_trainer.rewards.scores import Scorer, ToScore, collect
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.storage.secrets import read_secrets

_FIELDS = ("promptField", "answerField")


@dataclass(frozen=True)
class Request:
    """What to evaluate. Each absent value is the job's.

    Attributes:
        adapter: see `find_adapter`.
        job: a manifest.
        overrides: assignments that change it.
        base: the base model.
        data: a file with rows.
        reward: a type of reward, or a function package.module:function.
        rows: how many rows to use, from the first.
        samples: completions of each prompt.
        temperature: 0 is greedy; None is greedy for one sample, and the job's for several.
        max_tokens: the longest completion.
        passing: the score with which a completion counts for pass@k.
        seed: of the samples.
    """

    adapter: str
    job: Path | None = None
    overrides: Sequence[str] = ()
    base: str | None = None
    data: str | None = None
    reward: str | None = None
    rows: int | None = None
    samples: int = 1
    temperature: float | None = None
    max_tokens: int | None = None
    passing: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Result:
    """The scores of base and adapter on the same rows: [rows][samples], and what they were made with."""

    adapter: str
    base: str
    reward: str
    rows: int
    samples: int
    temperature: float
    passing: float
    base_scores: list[list[float]]
    adapter_scores: list[list[float]]

    def summary(self) -> dict[str, Any]:
        """Return the means with their intervals, as JSON takes them; paired differences for the gain."""
        sides = {"base": self.base_scores, "adapter": self.adapter_scores}
        means = {name: [sum(row) / len(row) for row in scores] for name, scores in sides.items()}
        passes = {name: pass_at(scores, self.passing) for name, scores in sides.items()}

        def compared(values: dict[str, list[float]]) -> dict[str, Any]:
            gain = [after - before for before, after in zip(values["base"], values["adapter"], strict=True)]
            return {name: asdict(mean_interval(each)) for name, each in (*values.items(), ("gain", gain))}

        about = {key: getattr(self, key) for key in ("rows", "samples", "temperature", "reward")}
        return {
            "adapter": self.adapter,
            "base_model": self.base,
            **about,
            "score": compared(means),
            f"pass@{self.samples}": {"at_least": self.passing, **compared(passes)},
        }


def evaluate(request: Request) -> Result:
    """Evaluate an adapter and its base model.

    Raises:
        LorarlError: adapter, base model, data or reward cannot be used.
        ManifestError: the manifest has faults.
    """
    source = find_adapter(request.adapter, request.job, request.overrides, request.base)
    spec = _spec(request, source)
    with open_scorers(spec, source.folder) as scorers:
        scorer = scorers.reward
        assert scorer is not None, "_spec requires a reward"
        rows = inputs.Rows(inputs.read_rows(spec, read_secrets(spec)).train[: request.rows], {})
        asyncio.run(scorer.ready())
        temperature = request.temperature
        if temperature is None:
            temperature = spec.rollout.temperature if request.samples > 1 else 0.0
        decoding = _decoding(spec.rollout, request.samples, temperature)
        model = load_adapted(source, seed=request.seed)
        data = inputs.encode_rows(spec, rows, model.vocabulary)
        for warning in data.warnings:
            print(f"warning: {warning}", file=sys.stderr)
        with model.plain():
            base_scores = _scores("base", model, decoding, data.train, scorer)
        adapter_scores = _scores("adapter", model, decoding, data.train, scorer)
    return Result(
        adapter=str(source.adapter),
        base=source.base,
        reward=spec.reward_names,
        rows=len(data.train),
        samples=request.samples,
        temperature=temperature,
        passing=request.passing,
        base_scores=base_scores,
        adapter_scores=adapter_scores,
    )


def report(result: Result) -> str:
    """Return a result as lines for people."""
    summary = result.summary()
    sampling = (
        "greedy" if result.temperature == 0 else f"{result.samples} samples at temperature {result.temperature:g}"
    )
    lines = [f"{result.rows:,} rows, {sampling}, reward {result.reward}", ""]
    kinds = [("score", "score")]
    if result.samples > 1:
        kinds.append((f"pass@{result.samples}", f"pass@{result.samples} (score at least {result.passing:g})"))
    for key, title in kinds:
        lines.append(f"{title:<34}{'mean':>8}   95% interval")
        lines += [
            f"  {name:<32}{_shown(Interval(**summary[key][name]), signed=name == 'gain')}"
            for name in ("base", "adapter", "gain")
        ]
    return "\n".join(lines)


def to_json(result: Result) -> str:
    """Return a result as JSON, with the score of each completion."""
    scores = {"base_scores": result.base_scores, "adapter_scores": result.adapter_scores}
    return json.dumps({**result.summary(), **scores}, indent=2)


def _spec(request: Request, source: Source) -> LoRARLJobSpec:
    """Return the job's spec with the request's data, reward and lengths; without a job, a spec of these alone."""
    manifest = source.job.model_dump(by_alias=True, mode="json", exclude_unset=True) if source.job else _bare(request)
    spec: dict[str, Any] = manifest["spec"]
    spec["algorithm"] = {"type": "grpo"}
    if request.reward:
        spec["reward"] = {"function" if ":" in request.reward else "type": request.reward}
        spec.pop("rewards", None)
    _require(spec.get("reward") or spec.get("rewards"), "--reward", "the reward to score with: this job has none")
    if request.max_tokens:
        spec["rollout"] = {**spec.get("rollout", {}), "maxResponseTokens": request.max_tokens}
    data = spec["data"]
    held_out = data.pop("eval", None)
    data.pop("evals", None)
    if request.data:
        data["train"] = {
            "uri": _uri(request.data),
            **{key: data["train"][key] for key in _FIELDS if key in data["train"]},
        }
    else:
        _require(held_out, "--data", "the rows to evaluate on: this job has no data.eval")
        data["train"] = {key: value for key, value in held_out.items() if key in ("uri", "subset", "split", *_FIELDS)}
    return load_job(json.dumps(manifest)).spec


def _bare(request: Request) -> dict[str, Any]:
    """Return a manifest of nothing but the request's data and reward."""
    _require(request.data, "--data", "the rows to evaluate on")
    _require(request.reward, "--reward", "the reward to score with")
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "evaluation"},
        "spec": {
            "model": {"uri": "file:base"},
            "adapter": {"targetModules": ["all-linear"]},
            "data": {"train": {"uri": _uri(request.data or "")}},
            "checkpoint": {"uri": "file:checkpoints"},
        },
    }


def _require(value: object, option: str, what: str) -> None:
    if value is None:
        raise InputError(option, "nothing", what, f"Add {option}, or name the job with --job.")


def _uri(data: str) -> str:
    return data if "://" in data or data.startswith("file:") else f"file:{data}"


def _decoding(rollout: RolloutSpec, samples: int, temperature: float) -> Decoding:
    sampling = Sampling.of(rollout).at(temperature) if temperature else None
    return Decoding(samples, rollout.max_response_tokens, sampling, tuple(rollout.stop))


def _scores(
    name: str, model: AdaptedModel, decoding: Decoding, rows: Sequence[EncodedRow], scorer: Scorer
) -> list[list[float]]:
    """Return the scores of one side by row and sample. A completion that cannot be scored counts as 0."""

    def done(count: int) -> None:
        print(f"{name}: {count} of {len(rows)} rows", file=sys.stderr, flush=True)

    answers = model.generate([row.prompt_ids for row in rows], decoding, done)
    made = [
        ToScore(row.row.prompt, answer.text, row.row.answer, row.row.raw, answer.truncated)
        for row, each in zip(rows, answers, strict=True)
        for answer in each
    ]
    found = collect(asyncio.run(scorer.score(made)), scorer.field)
    for cause, failure in found.failures.items():
        count, why = failure.count, failure.first_message
        print(f"warning: {count} completions of {name} have no score and count as 0 ({cause}): {why}", file=sys.stderr)
    values = [0.0 if math.isnan(value) else float(value) for value in found.rewards]
    return [values[start : start + decoding.samples] for start in range(0, len(values), decoding.samples)]


def _shown(interval: Interval, *, signed: bool) -> str:
    sign = "+" if signed else ""
    if interval.low is None:
        return f"{interval.mean:>{sign}8.3f}   unknown: one row"
    return f"{interval.mean:>{sign}8.3f}   {interval.low:{sign}.3f} to {interval.high:{sign}.3f}"
