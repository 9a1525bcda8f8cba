"""`lorarl evaluate`: the score of an adapter beside its base model, on the same rows."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lorarl_api.v1alpha1 import EvalSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.launch import inputs
from lorarl_trainer.progress import show_downloads
from lorarl_trainer.rewards.components import component_metrics
from lorarl_trainer.rewards.scorer import make_job_scorer, make_scorer
from lorarl_trainer.rewards.scores import Scorer, ToScore, collect
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.storage.secrets import read_secrets
from lorarl_trainer.trained_adapters.model import AdaptedModel, Decoding, load_adapted
from lorarl_trainer.trained_adapters.request import Request, Task, resolve, settings
from lorarl_trainer.trained_adapters.result import Result, Side
from lorarl_trainer.trained_adapters.source import find_adapter

_EVERY_SECONDS = 10.0
"""How often a long evaluation says how far it is."""


def evaluate(request: Request) -> Result:
    """Evaluate an adapter and its base model.

    Raises:
        LorarlError: adapter, base model, data or reward cannot be used.
        ManifestError: the manifest has faults.
    """
    source = find_adapter(request.adapter, request.job, request.overrides, request.base, request.checkpoint)
    task = resolve(request, source.job)
    with _scorer(task, source.folder) as scorer:
        evaluation = Evaluation.of(task.name, task.source, task.field, (), scorer, task.spec.rollout)
        evaluation = settings(request, evaluation, task)
        with show_downloads(sys.stderr) as on_bytes:
            secrets = read_secrets(task.spec)
            rows = inputs.read_source(task.spec, task.source, field=task.field, secrets=secrets, on_bytes=on_bytes)
        asyncio.run(scorer.ready())
        print(f"loading {source.base} and {source.label}", file=sys.stderr, flush=True)
        model = load_adapted(source, seed=request.seed)
        encoder = inputs.prompt_encoder(task.spec, model.vocabulary)
        fitting, warnings = inputs.encode_source(task.spec, task.source, rows[: request.rows], task.field, encoder)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        rollout = task.spec.rollout
        decoding = Decoding(evaluation.samples, rollout.max_response_tokens, evaluation.sampling, tuple(rollout.stop))
        with model.plain():
            base = _side("base", model, decoding, fitting, scorer)
        adapter = _side("adapter", model, decoding, fitting, scorer)
    return Result(source=source, task=task, evaluation=evaluation, base=base, adapter=adapter)


@contextlib.contextmanager
def _scorer(task: Task, folder: Path) -> Iterator[Scorer]:
    """Start what the evaluation is scored with: its own reward, or the job's."""
    with fetched_sources(task.spec, read_secrets(task.spec)) as (spec, sources):
        source = dict(spec.data.evaluations)[task.name]
        own = source.reward if isinstance(source, EvalSpec) else None
        scorer = (
            make_scorer(own, folder, f"{task.field}.reward", sources=sources)
            if own
            else make_job_scorer(spec, folder, sources=sources)
        )
        assert scorer is not None, "resolve requires a reward"
        scorer.warm_up()
        try:
            yield scorer
        finally:
            scorer.close()


def _side(name: str, model: AdaptedModel, decoding: Decoding, rows: Sequence[EncodedRow], scorer: Scorer) -> Side:
    """Return the scores of one side. A completion that cannot be scored is left out, as in a run."""
    began = said = time.monotonic()

    def done(ready: int, tokens: int) -> None:
        nonlocal said
        if ready == len(rows) or (now := time.monotonic()) - said >= _EVERY_SECONDS:
            said = now if ready < len(rows) else said
            now_at = f", and {tokens} of at most {decoding.max_tokens} tokens of the next" if tokens else ""
            seconds = f"{time.monotonic() - began:.0f} s"
            print(f"{name}: {ready} of {len(rows)} rows{now_at}, {seconds}", file=sys.stderr, flush=True)

    answers = model.generate([row.prompt_ids for row in rows], decoding, done)
    made = [
        ToScore(row.row.prompt, answer.text, row.row.answer, row.row.raw, answer.truncated, answer.tokens)
        for row, each in zip(rows, answers, strict=True)
        for answer in each
    ]
    outcomes = asyncio.run(scorer.score(made))
    found = collect(outcomes, scorer.field)
    for cause, failure in found.failures.items():
        count, why = failure.count, failure.first_message
        left_out = f"{count} completions of {name} could not be scored and are left out ({cause}): {why}"
        print(f"warning: {left_out}", file=sys.stderr)
    return Side(np.reshape(found.rewards, (-1, decoding.samples)), component_metrics(outcomes))
