"""`lorarl evaluate`: the score of an adapter beside its base model, on the same rows."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import EvalSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.rollouts import episodes_of
from lorarl_trainer.progress import show_downloads
from lorarl_trainer.rewards.components import component_metrics
from lorarl_trainer.rewards.scorer import Scorers, make_job_scorer, make_scorer, open_scorers
from lorarl_trainer.rewards.scores import Cause, Failure, ToScore, collect
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.rollout.episodes import Episodes, episode_metrics
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.storage.secrets import secrets_on_demand
from lorarl_trainer.trained_adapters.model import AdaptedModel, Decoding, load_adapted
from lorarl_trainer.trained_adapters.play import play
from lorarl_trainer.trained_adapters.request import (
    READS,
    Request,
    Task,
    of_other_rows,
    resolve,
    settings,
    without_template,
)
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
    source = find_adapter(request.adapter, request.job, request.overrides, request.base, request.checkpoint, READS)
    task = resolve(request, source.job)
    with _scorers(task, source.folder) as scorers:
        not_yet: Any = scorers.reward  # what plays episodes needs the model's vocabulary
        evaluation = Evaluation.of(task.name, task.source, task.field, (), not_yet, task.spec.rollout)
        evaluation = settings(request, evaluation, task)
        with _told(task), show_downloads(sys.stderr) as on_bytes:
            secrets = secrets_on_demand(task.spec)
            rows = inputs.read_source(task.spec, task.source, field=task.field, secrets=secrets, on_bytes=on_bytes)
        asyncio.run(scorers.ready())
        if scorers.environment:
            scorers.environment.require_tasks(task.field, task.source)
        if scorers.environment and scorers.environment.tools:
            rows = [replace(row, tools=scorers.environment.tools) for row in rows]
        print(f"loading {source.base} and {source.label}", file=sys.stderr, flush=True)
        model = load_adapted(source, seed=request.seed)
        if source.job is None and not model.tokenizer.chat_template:
            print("prompts are used as they are: the model has no chat template", file=sys.stderr, flush=True)
            task = without_template(task)
        encoder = inputs.prompt_encoder(task.spec, model.vocabulary)
        with _told(task):
            fitting, warnings = inputs.encode_source(task.spec, task.source, rows[: request.rows], task.field, encoder)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        evaluation = replace(evaluation, rows=fitting)
        if scorers.environment:
            episodes = episodes_of(task.spec, scorers, model.vocabulary, together=True)
            evaluation = replace(evaluation, scorer=episodes)
        rollout = task.spec.rollout
        decoding = Decoding(evaluation.samples, rollout.max_response_tokens, evaluation.sampling, tuple(rollout.stop))
        base, adapter = asyncio.run(_sides(model, decoding, evaluation, task.spec.trainer.seed))
    return Result(source=source, task=task, evaluation=evaluation, base=base, adapter=adapter)


@contextlib.contextmanager
def _told(task: Task) -> Iterator[None]:
    """Let errors about rows name what can be changed."""
    try:
        yield
    except InputError as error:
        raise of_other_rows(error, task) from error


@contextlib.contextmanager
def _scorers(task: Task, folder: Path) -> Iterator[Scorers]:
    """Start what the evaluation is scored with: its own reward, or the job's, or its environment."""
    with fetched_sources(task.spec, secrets_on_demand(task.spec)) as (spec, sources):
        if spec.environment:
            with open_scorers(spec, folder, sources=sources) as scorers:
                yield scorers
            return
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
            yield Scorers(scorer, {})
        finally:
            scorer.close()


async def _sides(model: AdaptedModel, decoding: Decoding, evaluation: Evaluation, seed: int) -> tuple[Side, Side]:
    """Return the scores of the base model and of the adapter."""
    with model.plain():
        base = await _side("base", model, decoding, evaluation, seed)
    return base, await _side("adapter", model, decoding, evaluation, seed)


async def _side(name: str, model: AdaptedModel, decoding: Decoding, evaluation: Evaluation, seed: int) -> Side:
    """Return the scores of one side. What cannot be scored is left out, as in a run."""
    if isinstance(evaluation.scorer, Episodes):
        rollouts = await play(name, model, decoding, evaluation.scorer, evaluation, seed)
        _warn_of(rollouts.failures, f"episodes of {name} failed")
        of_episodes = {key: value for key, value in episode_metrics(rollouts.courses).items() if "seconds" not in key}
        components = component_metrics(rollouts.outcomes) | of_episodes
        return Side(np.reshape(rollouts.rewards, (-1, decoding.samples)), components)
    outcomes = await evaluation.scorer.score(_completions(name, model, decoding, evaluation.rows))
    found = collect(outcomes, evaluation.scorer.field)
    _warn_of(found.failures, f"completions of {name} could not be scored")
    return Side(np.reshape(found.rewards, (-1, decoding.samples)), component_metrics(outcomes))


def _warn_of(failures: Mapping[Cause, Failure], what: str) -> None:
    for cause, failure in failures.items():
        print(f"warning: {failure.count} {what} and are left out ({cause}): {failure.first_message}", file=sys.stderr)


def _completions(name: str, model: AdaptedModel, decoding: Decoding, rows: Sequence[EncodedRow]) -> list[ToScore]:
    """Return the completions of one side, as they are scored."""
    began = said = time.monotonic()

    def done(ready: int, tokens: int) -> None:
        nonlocal said
        if ready == len(rows) or (now := time.monotonic()) - said >= _EVERY_SECONDS:
            said = now if ready < len(rows) else said
            now_at = f", and {tokens} of at most {decoding.max_tokens} tokens of the next" if tokens else ""
            seconds = f"{time.monotonic() - began:.0f} s"
            print(f"{name}: {ready} of {len(rows)} rows{now_at}, {seconds}", file=sys.stderr, flush=True)

    answers = model.generate([row.prompt_ids for row in rows], decoding, done)
    return [
        ToScore(row.row.prompt, answer.text, row.row.answer, row.row.raw, answer.truncated, answer.tokens)
        for row, each in zip(rows, answers, strict=True)
        for answer in each
    ]
