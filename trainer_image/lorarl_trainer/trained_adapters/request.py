"""What `lorarl evaluate` was asked for, and what that is together with the job: rows, reward and sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lorarl_api.load import faults, load_job
from lorarl_api.v1alpha1 import API_VERSION, KIND, EvalSource, LoRARLJob, LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import eval_fields
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.samples.columns import eval_column
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.trained_adapters.source import READS as OF_ADAPTERS
from lorarl_trainer.trained_adapters.source import Checkpoint

_FIELDS = ("promptField", "answerField", "systemField", "toolsField")
_OF_TRAINING = ("curriculum", "chatTemplateFile")  # the adapter's tokenizer has that template
_OF_SAMPLING = ("maxPromptTokens", "maxResponseTokens", "temperature", "topP", "topK", "minP", "stop")
_OF_STORE = ("uri", "credentialsSecret")
"""Parts of the spec's data, rollout and checkpoint: those that an evaluation does not need, or that it needs alone."""
_OF_SCORING = ("reward", "rewards", "environment")
_OF_DATA = ("train", "mixture", "eval", "evals", "chatTemplateArguments")
READS = (
    *OF_ADAPTERS,
    *(f"spec.{part}" for part in _OF_SCORING),
    *(f"spec.data.{part}" for part in _OF_DATA),
    *(f"spec.rollout.{part}" for part in _OF_SAMPLING),
    "spec.trainer.seed",
)
"""What an evaluation reads of a job."""


@dataclass(frozen=True)
class Request:
    """What to evaluate. Each absent value is the evaluation's, or else the job's.

    Attributes:
        adapter: see `find_adapter`.
        overrides: assignments that change it.
        checkpoint: which of a run's checkpoints.
        eval: an evaluation of `data.evals`; None for `data.eval`, or else the first of `data.evals`.
        data: a file with rows, in place of an evaluation.
        reward: a type of reward, or a function package.module:function.
        rows: how many rows to use, from the first.
        temperature: 0 is greedy.
        max_tokens: the longest completion.
        passing: the score with which a completion counts for pass@k.
    """

    adapter: str
    job: Path | None = None
    overrides: Sequence[str] = ()
    base: str | None = None
    checkpoint: Checkpoint | None = None
    eval: str | None = None
    data: str | None = None
    reward: str | None = None
    rows: int | None = None
    samples: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    passing: float | None = None
    seed: int = 0


@dataclass(frozen=True)
class Task:
    """One evaluation of a job.

    Attributes:
        spec: the job's, changed as the request asks.
        name: of the evaluation; empty for `data.eval`.
        others: names of the job's other evaluations.
        of_job: whether the rows are the job's own.
        columns: path of the job's source that says the columns of other rows; None if there is none to change.
    """

    spec: LoRARLJobSpec
    name: str
    source: EvalSource
    others: tuple[str, ...]
    of_job: bool
    columns: str | None = None

    @property
    def field(self) -> str:
        return eval_fields(self.spec)[self.name]

    @property
    def title(self) -> str:
        """The evaluation and its rows, for people."""
        named = self.name or "data.eval"
        return f"{named} ({self.source.origin})" if self.of_job else self.source.origin

    def is_chosen_by(self, column: str) -> bool:
        """Return whether a column of metrics.jsonl, that of a score, loss or pass@k, has this evaluation's results."""
        metric = column.rpartition("/")[2].removeprefix("eval_")
        return self.of_job and column == eval_column(self.name, metric)


def without_template(task: Task) -> Task:
    """Return a task whose prompts are used as they are."""
    data = task.spec.data.model_copy(update={"chat_template": False})
    return replace(task, spec=task.spec.model_copy(update={"data": data}))


def of_other_rows(error: InputError, task: Task) -> InputError:
    """Return an error about the rows of an evaluation as one that names what can be changed where --data names them."""
    if task.of_job or not error.field.startswith(f"{task.field}."):
        return error
    if error.field == f"{task.field}.uri":
        return InputError("--data", error.got, error.expected, error.hint)
    if task.columns is None:
        hint = "Rename a column, or name a job with --job whose spec.data.train names them."
        return InputError("--data", error.got, error.expected, hint)
    field, hint = (text.replace(task.field, task.columns) for text in (error.field, error.hint))
    return InputError(field, error.got, error.expected, hint)


def resolve(request: Request, job: LoRARLJob | None) -> Task:
    """Return the evaluation that a request asks for.

    Raises:
        InputError: the job lacks it, rows or a reward are missing, or an option does not go together with the job.
        ManifestError: the manifest has faults.
    """
    manifest = job.model_dump(by_alias=True, mode="json", exclude_unset=True) if job else _bare(request)
    manifest["spec"] = spec = _needed(manifest["spec"])
    request = _judged_by_completions(spec, request)
    if request.reward:
        spec["reward"] = {"function" if ":" in request.reward else "type": request.reward}
        spec.pop("rewards", None)
        if spec.pop("environment", None):  # single completions are scored
            _forget_episodes(spec["data"], request)
        for each in spec["data"].get("evals", []):
            each.pop("reward", None)
        _require_valid(manifest, "--reward", request.reward)
    played = spec.get("environment")
    _require(
        spec.get("reward") or spec.get("rewards") or played, "--reward", "the reward to score with: this job has none"
    )
    if request.max_tokens:
        spec["rollout"] = {**spec.get("rollout", {}), "maxResponseTokens": request.max_tokens}
        _require_valid(manifest, "--max-tokens", str(request.max_tokens))
    if request.data:
        _replace_evaluations(spec, request)
        _require_valid(manifest, "--data", request.data)
    columns = "spec.data.train" if job and request.data and "train" in spec["data"] else None
    return replace(_chosen(load_job(json.dumps(manifest)).spec, request), columns=columns)


def _forget_episodes(data: Mapping[str, Any], request: Request) -> None:
    """Name a file in place of rows that only an environment opens, where no rows are read."""
    sources = [data.get("train"), *(data.get("mixture") or ())]
    sources += [data.get("eval"), *data.get("evals", ())] if request.data else []
    for source in filter(None, sources):
        if source.pop("episodes", None) is not None:
            source["uri"] = "file:rows.jsonl"


def _needed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a job's spec an evaluation depends on. What is about training alone would only bring its rules."""
    return {
        "model": spec["model"],
        "adapter": {"targetModules": ["all-linear"]},  # the adapter's own files say what it is
        **{key: spec[key] for key in _OF_SCORING if spec.get(key)},
        # The games of an evaluation are those of the run.
        "trainer": {key: value for key, value in spec.get("trainer", {}).items() if key == "seed"},
        "data": {key: value for key, value in spec["data"].items() if key not in _OF_TRAINING},
        "rollout": {key: value for key, value in spec.get("rollout", {}).items() if key in _OF_SAMPLING},
        "checkpoint": {key: value for key, value in spec["checkpoint"].items() if key in _OF_STORE},
    }


def _require_valid(manifest: Mapping[str, Any], option: str, value: str) -> None:
    """Refuse an option with which the job breaks one of its rules. Those that it breaks without any are the job's."""
    if broken := faults(manifest):
        first = broken[0]
        got, hint = f"{value}, with which {first.path} {first.verb} {first.expected}", f"Change or remove {option}."
        raise InputError(option, got, "a value that goes together with the job", hint)


def settings(request: Request, evaluation: Evaluation, task: Task) -> Evaluation:
    """Return an evaluation with the sampling and pass@k of a request.

    Raises:
        InputError: several samples of a prompt would be the same.
    """
    samples, temperature = request.samples or evaluation.samples, request.temperature
    if temperature is None and evaluation.sampling is None and samples > 1:
        temperature = task.spec.rollout.temperature
    sampling = evaluation.sampling
    if temperature is not None:
        sampling = Sampling.of(task.spec.rollout).at(temperature) if temperature else None
    if samples > 1 and sampling is None:
        got = f"{samples} with temperature 0, which makes the same completion each time"
        raise InputError("--samples", got, "1, or a temperature above 0", "Leave --temperature out.")
    return replace(
        evaluation,
        samples=samples,
        sampling=sampling,
        pass_at=evaluation.pass_at if evaluation.pass_at and not request.samples else [samples],
        pass_reward=evaluation.pass_reward if request.passing is None else request.passing,
    )


def _judged_by_completions(spec: dict[str, Any], request: Request) -> Request:
    """Let a job be judged by what its model writes, also one of sft or dpo. Return the request for that.

    Such a job has no reward, but an evaluation of it may have one.
    """
    data = spec["data"]
    evals = data.get("evals", [])
    for source in (data.get("train"), data.get("eval"), *(data.get("mixture") or ()), *evals):
        for key in ("chosenField", "rejectedField", "messagesField", "tokensField", "lossMaskField"):
            (source or {}).pop(key, None)
    if request.reward or spec.get("reward") or spec.get("rewards") or spec.get("environment"):
        return request
    scored = [each for each in evals if each.get("reward") and request.eval in (None, each["name"])]
    if not scored:
        return request
    spec["reward"] = scored[0]["reward"]
    return request if request.data else replace(request, eval=scored[0]["name"])


def _chosen(spec: LoRARLJobSpec, request: Request) -> Task:
    sources = dict(spec.data.evaluations)
    _require(sources or None, "--data", "the rows to evaluate on: this job has no data.eval and no data.evals")
    name = next(iter(sources)) if request.eval is None else request.eval
    if name not in sources:
        raise InputError(
            "--eval",
            name,
            f"the name of an evaluation in data.evals ({', '.join(filter(None, sources)) or 'none'})",
            "Leave it out for data.eval, or name other rows with --data.",
        )
    others = tuple(other for other in sources if other not in ("", name))
    return Task(spec, name, sources[name], others, of_job=not request.data)


def _replace_evaluations(spec: dict[str, Any], request: Request) -> None:
    """Make a file with rows the job's only evaluation."""
    if request.eval is not None:
        got, hint = f"{request.eval} together with --data", "Leave one of the two out."
        raise InputError("--eval", got, "either rows of the job or other rows", hint)
    data = spec["data"]
    data.pop("evals", None)
    train = data.get("train") or data["mixture"][0]
    fields = {key: train[key] for key in _FIELDS if key in train}
    data["eval"] = {"uri": _uri(request.data or ""), **fields}


def _bare(request: Request) -> dict[str, Any]:
    """Return a manifest of nothing but the request's reward. Its rows are added like those of any request."""
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
