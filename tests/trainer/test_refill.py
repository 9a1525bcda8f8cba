"""Dynamic sampling with the real engine: groups without signal are replaced, within limits, and the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.algorithms.groups import with_signal
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.progress import Progress
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rollout.lockstep import Lockstep
from support.in_process import Colocated, OneWorker
from support.loop_runs import CountsEvenTokens, rows, spelled

PROMPTS, GROUP = 4, 3


class LikesSomePrompts(CountsEvenTokens):
    """Scores completions of prompts that begin with an even token; all others are right."""

    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        scored = await super().score(samples)
        return [one if begins_even(s.prompt) else Outcome(1.0) for one, s in zip(scored, samples, strict=True)]


class LikesAll(CountsEvenTokens):
    async def score(self, samples: Sequence[ToScore]) -> list[Outcome]:
        return [Outcome(1.0) for _ in samples]


def begins_even(prompt: str) -> bool:
    return int(prompt.strip("[]").split(",")[0]) % 2 == 0


def step_of(worker: Colocated, max_refills: int, scorer: Any = None) -> tuple[StepBatch, Lockstep]:
    """Make one step; return it, and where it came from."""
    lockstep = Lockstep(
        worker.spec,
        RowStream(rows(40), 0),
        {},
        GROUP,
        OneWorker(worker.worker),
        scorer or LikesSomePrompts(),
        spelled,
        Progress([], []),
        spelled,
        max_refills=max_refills,
    )
    return asyncio.run(lockstep.next(1, worker.version)), lockstep


@pytest.fixture
def worker(colocated) -> Colocated:
    ready: Colocated = colocated(rollout__promptsPerStep=PROMPTS)
    ready.sync()
    return ready


def tokens_of(batch: StepBatch) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in batch.samples_S]


def test_groups_without_signal_are_replaced(worker: Colocated) -> None:
    plain, source = step_of(worker, 0)
    assert source.position == PROMPTS and "sampling/rounds" not in plain.metrics
    assert 0 < with_signal(plain.rewards_P_G).sum() < PROMPTS, "the scenario needs groups of both kinds"
    batch, source = step_of(worker, 10)
    assert batch.rewards_P_G.shape == (PROMPTS, GROUP) and with_signal(batch.rewards_P_G).all()
    assert len(batch.samples_S) == PROMPTS * GROUP
    assert batch.metrics["sampling/prompts"] == source.position > PROMPTS
    assert batch.metrics["sampling/rounds"] > 1 and batch.metrics["signal_share"] < 1
    # The samples with signal of the first round are kept as they are, with their rewards.
    kept = np.flatnonzero(with_signal(plain.rewards_P_G))
    np.testing.assert_array_equal(batch.rewards_P_G[: len(kept)], plain.rewards_P_G[kept])
    first = [tokens_of(plain)[index] for group in kept for index in range(group * GROUP, (group + 1) * GROUP)]
    assert tokens_of(batch)[: len(first)] == first
    shown = [sample.reward for sample in batch.shown]
    assert shown == batch.rewards_P_G.reshape(-1)[: len(shown)].tolist()


def test_the_same_step_is_made_again(worker: Colocated) -> None:
    (one, _), (other, _) = step_of(worker, 10), step_of(worker, 10)
    assert tokens_of(one) == tokens_of(other)


def test_the_limit_ends_the_search(worker: Colocated) -> None:
    batch, source = step_of(worker, 2, LikesAll())
    assert batch.metrics["sampling/rounds"] == 3 and source.position == 3 * PROMPTS
    assert batch.rewards_P_G.shape == (PROMPTS, GROUP), "what is missing is filled up"
