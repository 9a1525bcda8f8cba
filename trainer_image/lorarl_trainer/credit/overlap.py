"""Groups that have ended are trained while others are still being generated.

The gradient of an update is a sum over its samples, and nothing changes the adapter before the update. So it does not
matter when a sample is added, but for rounding. What has not been trained when generation ends is left to the update.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.algorithms.base import Floats
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.packing import packed_micro_batches
from lorarl_trainer.samples.types import GradientRequest, Sample, Samples


class TrainedAhead:
    """What is trained of a step before all of it has been generated: within `async with`.

    Attributes:
        indices: of the step's samples whose gradient is there.
    """

    def __init__(self, workers: Workers, algorithm: Algorithm, micro_batch_tokens: int | None) -> None:
        """Train micro-batches of so many tokens; None trains nothing ahead."""
        self.indices: set[int] = set()
        self._workers, self._algorithm, self._tokens = workers, algorithm, micro_batch_tokens
        self._idle = list(range(workers.trainers))
        self._open = micro_batch_tokens is not None
        self._waiting: dict[int, Sample] = {}
        self._running: list[asyncio.Task[None]] = []
        self._busy: list[tuple[float, float]] = []  # when each micro-batch began and ended
        self._generated = self._ended = 0.0

    async def __aenter__(self) -> Self:
        """Begin."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the micro-batches that have begun, unless there was an error."""
        self._generated = time.perf_counter()
        self._open = False
        if error is not None:
            for task in self._running:
                task.cancel()
        await asyncio.gather(*self._running, return_exceptions=error is not None)
        self._ended = time.perf_counter()

    def take(self, first: int, group: StepBatch) -> None:
        """Take a group of the step, whose first sample has the index `first`. See `protocols.rollouts.TakeGroup`."""
        advantages_P_G = self._algorithm.advantages(group.rewards_P_G, group.response_lengths)
        self._waiting |= {
            first + index: sample for index, sample in scored_samples(group, advantages_P_G.reshape(-1).tolist())
        }
        self._begin(group)

    def seconds(self, generated: Mapping[str, float]) -> dict[str, float]:
        """Return the phases of generation with those of training ahead.

        What both took at the same time is `overlap` and no longer `generate`. The wait at the end is forward_backward.
        """
        if not self._busy:
            return dict(generated)
        until = self._generated - generated.get("reward", 0.0)
        both = min(_length(self._busy, until), generated["generate"])
        waited = self._ended - self._generated
        alone = generated["generate"] - both
        return {**generated, "generate": alone, "overlap": both, "forward_backward": waited}

    def _begin(self, like: StepBatch) -> None:
        """Give each idle trainer a micro-batch, if there are enough samples to fill it."""
        while self._open and self._idle and (indices := self._micro_batch()):
            request = GradientRequest(
                samples=Samples(self._waiting.pop(index) for index in indices),
                loss=self._algorithm.loss,
                temperature=like.temperature,
                on_policy=like.on_policy,
            )
            self._running.append(asyncio.create_task(self._train(self._idle.pop(0), request, indices, like)))

    async def _train(self, trainer: int, request: GradientRequest, indices: Sequence[int], like: StepBatch) -> None:
        began = time.perf_counter()
        await self._workers.accumulate(trainer, request)
        self._busy.append((began, time.perf_counter()))
        self.indices.update(indices)
        self._idle.append(trainer)
        self._begin(like)

    def _micro_batch(self) -> list[int]:
        """Return the indices of waiting samples that fill a micro-batch, if there are enough of them."""
        assert self._tokens is not None, "otherwise it is not open"
        for with_gradient in (True, False):
            chosen = [i for i, s in self._waiting.items() if self._algorithm.loss.has_gradient(s) is with_gradient]
            parts = packed_micro_batches([self._waiting[index] for index in chosen], self._tokens)
            if len(parts) > 1:
                return [chosen[index] for index in parts[0]]
        return []


def scored_samples(batch: StepBatch, advantages_S: Sequence[float | Floats]) -> Iterator[tuple[int, Sample]]:
    """Yield the samples of a batch with their advantages, and the index of each. One without a reward takes no part."""
    for index in np.flatnonzero(~np.isnan(batch.rewards_P_G.reshape(-1))).tolist():
        yield index, replace(batch.samples_S[index], advantage=advantages_S[index])


def _length(spans: Sequence[tuple[float, float]], until: float) -> float:
    """Return the length of the union of some spans of time, up to a point in time."""
    total, last = 0.0, 0.0
    for begin, end in sorted(spans):
        total += max(0.0, min(end, until) - max(begin, last))
        last = max(last, end)
    return total
