"""What is trained while a step is still being generated: which samples, on which trainer, and in whose time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.credit.overlap import TrainedAhead
from lorarl_trainer.errors import WorkerError
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.samples.types import GradientRequest, Sample

ALGORITHM = get_algorithm(AlgorithmSpec(type="grpo", groupSize=2), 64)
TOKENS = 20
"""Of a micro-batch: two groups."""


class Trainers:
    """`Workers` that keep what they are asked to train, and are done when the test says so."""

    def __init__(self, trainers: int) -> None:
        self.trainers = trainers
        self.asked: list[tuple[int, GradientRequest]] = []
        self.done: list[asyncio.Future[None]] = []

    async def accumulate(self, trainer: int, request: GradientRequest) -> None:
        self.asked.append((trainer, request))
        self.done.append(asyncio.get_running_loop().create_future())
        await self.done[-1]

    @property
    def prompts(self) -> list[tuple[int, list[int]]]:
        """The prompts of each request, and its trainer."""
        return [(trainer, sorted({int(s.tokens[0]) for s in request.samples})) for trainer, request in self.asked]


def group(prompt: int, rewards: Sequence[float] = (0.0, 1.0)) -> StepBatch:
    """Two samples of nine tokens in all."""
    samples = [Sample(np.array([prompt, 1, 2, 3, 4]), 1, rollout_logprobs=np.zeros(4, np.float32)) for _ in rewards]
    return StepBatch(samples, np.array([rewards]), temperature=0.7, on_policy=True)


async def until_quiet() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_full_micro_batches_go_to_idle_trainers_and_the_rest_is_left() -> None:
    async def run() -> None:
        workers = Trainers(2)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            for number in range(2):
                ahead.take(2 * number, group(number))
            await until_quiet()
            assert not workers.asked, "the two would fit, and others with them"
            for number in range(2, 7):
                ahead.take(2 * number, group(number))
            await until_quiet()
            assert workers.prompts == [(0, [0, 1]), (1, [2, 3])], "both have enough to do"
            workers.done[1].set_result(None)
            await until_quiet()
            assert workers.prompts[2:] == [(1, [4, 5])]
            assert ahead.indices == {4, 5, 6, 7}
            for each in (0, 2):
                workers.done[each].set_result(None)
        assert ahead.indices == set(range(12)), "the last group fills no micro-batch"
        request = workers.asked[0][1]
        assert (request.temperature, request.on_policy, request.loss) == (0.7, True, ALGORITHM.loss)
        assert [round(sample.advantage, 3) for sample in request.samples] == [-0.707, 0.707] * 2

    asyncio.run(run())


def test_nothing_begins_once_generation_has_ended() -> None:
    async def run() -> None:
        workers = Trainers(1)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            for number in range(9):
                ahead.take(2 * number, group(number))
            # The first micro-batch has not even begun when the block ends.
            asyncio.get_running_loop().call_later(0, lambda: workers.done[0].set_result(None))
        await until_quiet()
        assert len(workers.asked) == 1 and len(ahead.indices) == 4

    asyncio.run(run())


def test_without_a_plan_for_it_nothing_is_trained_ahead() -> None:
    async def run() -> None:
        workers = Trainers(1)
        async with TrainedAhead(workers, ALGORITHM, None) as ahead:
            for number in range(9):
                ahead.take(2 * number, group(number))
            await until_quiet()
        assert not workers.asked and not ahead.indices
        assert ahead.seconds({"generate": 2.0, "reward": 0.5}) == {"generate": 2.0, "reward": 0.5}

    asyncio.run(run())


def test_those_without_reward_take_no_part_and_those_without_signal_wait() -> None:
    async def run() -> None:
        workers = Trainers(1)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            ahead.take(0, group(0, [math.nan, 1.0]))
            for number in range(1, 4):
                ahead.take(2 * number, group(number, [1.0, 1.0]))
            await until_quiet()
            [(_, request)] = workers.asked
            assert len(request.samples) == 4 and not any(sample.advantage for sample in request.samples)
            workers.done[0].set_result(None)
        assert 0 not in ahead.indices

    asyncio.run(run())


def test_a_failure_of_a_trainer_ends_the_step() -> None:
    async def run() -> None:
        workers = Trainers(1)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            for number in range(3):
                ahead.take(2 * number, group(number))
            await until_quiet()
            workers.done[0].set_exception(WorkerError("it broke"))

    with pytest.raises(WorkerError, match="it broke"):
        asyncio.run(run())


def test_an_error_while_generating_is_not_held_up_by_training() -> None:
    async def run() -> None:
        workers = Trainers(1)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            for number in range(3):
                ahead.take(2 * number, group(number))
            await until_quiet()
            assert workers.asked
            raise WorkerError("the engine broke")

    with pytest.raises(WorkerError, match="the engine broke"):
        asyncio.run(run())


def test_the_seconds_of_both_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("lorarl_trainer.credit.overlap.time.perf_counter", lambda: now)

    async def run() -> dict[str, float]:
        nonlocal now
        workers = Trainers(2)
        async with TrainedAhead(workers, ALGORITHM, TOKENS) as ahead:
            for number in range(5):
                ahead.take(2 * number, group(number))
            await until_quiet()  # both begin at 100
            now = 104.0
            workers.done[0].set_result(None)
            await until_quiet()
            now = 107.0
            workers.done[1].set_result(None)
            await until_quiet()
            now = 110.0
        return ahead.seconds({"wake": 0.5, "generate": 9.0, "reward": 4.0})

    # Generation ended at 106, and the last second of training was within the reward's time.
    assert asyncio.run(run()) == {
        "wake": 0.5,
        "generate": 3.0,
        "reward": 4.0,
        "overlap": 6.0,
        "forward_backward": 0.0,
    }
