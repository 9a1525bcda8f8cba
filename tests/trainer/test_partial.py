"""Answers that are continued from step to step, with the real engine and trainer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.losses.fresh import OF_FRESH
from lorarl_trainer.progress import Progress
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rollout.partial import Partial
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE
from support.in_process import Colocated, OneWorker, update_request
from support.loop_runs import CountsEvenTokens, rows, run_in_process, spelled

PROMPTS, GROUP, LONGEST = 4, 3, 24
SETTINGS = {
    "rollout__promptsPerStep": PROMPTS,
    "rollout__maxResponseTokens": LONGEST,
    "rollout__partial__extraPrompts": 3,
    "rollout__partial__tokensPerRound": 5,
    "algorithm__groupSize": GROUP,
    "algorithm__correction__preset": "decoupled_token_is",
}


@pytest.fixture
def worker(colocated: Callable[..., Colocated]) -> Colocated:
    ready = colocated(**SETTINGS)
    ready.randomise(scale=0.05)
    ready.sync()
    return ready


def steps_of(worker: Colocated, extra: int, count: int, before: Callable[[], object] = lambda: None) -> list[StepBatch]:
    """Make steps of samples; `before` each, something may happen."""
    rollouts = Partial(
        worker.spec,
        RowStream(rows(40), 0),
        {},
        GROUP,
        OneWorker(worker.worker),
        CountsEvenTokens(),
        spelled,
        Progress([], []),
        spelled,
        extra_prompts=extra,
        tokens_per_round=5,
    )
    made = []
    for step in range(count):
        before()
        made.append(asyncio.run(rollouts.next(step + 1, worker.version)))
    return made


def test_while_the_adapter_stays_as_it_is_tokens_do_too(worker: Colocated) -> None:
    """Which answers a step waits for makes no difference, and neither does a new version of the same adapter."""

    def by_prompt(steps: list[StepBatch]) -> dict[tuple[int, ...], list[list[int]]]:
        found: dict[tuple[int, ...], list[list[int]]] = {}
        for sample in (sample for batch in steps for sample in batch.samples_S):
            prompt, response = np.split(sample.tokens, [sample.prompt_length])
            found.setdefault(tuple(prompt.tolist()), []).append(response.tolist())
        return found

    patient, hasty = by_prompt(steps_of(worker, 0, 4)), steps_of(worker, 3, 4, worker.sync)
    older = [sample for batch in hasty for sample in batch.samples_S if not sample.fresh]
    assert older, "the scenario needs answers that are continued"
    same = [prompt for prompt, responses in by_prompt(hasty).items() if patient.get(prompt) == responses]
    assert len(same) >= 3 * PROMPTS
    for sample in older:  # a token has the log-probability of its adapter, which is still the same
        assert sample.rollout_logprobs is not None
        np.testing.assert_allclose(worker.trainer_logprobs([sample])[0], sample.rollout_logprobs, atol=1e-5)


def test_engine_and_trainer_must_agree_about_what_is_fresh_alone(worker: Colocated) -> None:
    (batch,) = steps_of(worker, 0, 1)
    wrong = [replace(one, rollout_logprobs=one.rollout_logprobs - 0.5, advantage=1.0) for one in batch.samples_S[:2]]
    right = [replace(one, advantage=-1.0) for one in batch.samples_S[2:]]
    limits = AgreementLimits(tolerance=1e-3)
    stale = [replace(one, fresh=False) for one in wrong]
    mixed, old, bad = (
        worker.worker.update(update_request(samples, limits=limits, learning_rate=0.0))
        for samples in ([*stale, *right], stale, [*wrong, *right])
    )
    assert mixed.disagreement is None and old.disagreement is None and bad.disagreement is not None
    # So are the metrics that compare the two, and those that need the policy's own samples.
    assert mixed.metrics[LOGPROB_DIFFERENCE] < 1e-5 and mixed.metrics["rollout_kl"] < 1e-5
    of_right = -np.concatenate(worker.trainer_logprobs(right)).mean()
    assert mixed.metrics["entropy"] == pytest.approx(of_right, abs=1e-5)
    assert not old.metrics.keys() & {*OF_FRESH, "logprob_noise"} and old.metrics["loss"] != 0


def test_a_run_is_resumed_with_its_unfinished_rows(colocated: Callable[..., Colocated]) -> None:
    first = colocated(**SETTINGS, trainer__steps=4)
    made = asyncio.run(run_in_process(first, stop_after=2))
    assert [step.step for step in made] == [1, 2] and made[1].metrics["partial/older_share"] > 0
    kept = sorted(first.out.rglob("iter_0000002/**/*.json"))
    left = [found for path in kept if (found := json.loads(path.read_text()).get("unfinished"))]
    assert len(left) == 1 and len(left[0]) == 3
    second = colocated(**SETTINGS, trainer__steps=4)
    third, fourth = asyncio.run(run_in_process(second))
    assert (third.step, fourth.step) == (3, 4)
    assert third.metrics["partial/older_share"] == 0 < fourth.metrics["partial/older_share"], "they begin again"
