"""What a run holds while it trains, and the clock of a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.checkpoint import Published
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import DataOrder
from lorarl_trainer.errors import LorarlError, WorkerError
from lorarl_trainer.progress import CheckpointDone, Progress, StartedUp, Warned
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.group import WorkerGroup

RESCUE_SECONDS = 60.0
"""For checkpoints that are still being uploaded when the loop has failed."""


class StepClock:
    """Where a step's time goes: what workers measured themselves, what was timed here, and the rest as `other`."""

    def __init__(self) -> None:
        """Start."""
        self._start = time.perf_counter()
        self._phases: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that a worker measured."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def add_all(self, phases: Mapping[str, float]) -> None:
        """Count the seconds of several phases."""
        for phase, seconds in phases.items():
            self.add(phase, seconds)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.add(name, time.perf_counter() - start)

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase; they add up to the whole."""
        return self._phases | {"other": max(0.0, self.elapsed() - sum(self._phases.values()))}


@dataclass
class Session:
    """A run: its parts, and where it is.

    Attributes:
        decode: token ids of completions to their texts, special tokens left out.
        stop: set when the run has been asked to end after a checkpoint.
        clock: of this process's start.
        steer: called once a step with this session, to change what may change while it runs; None where nothing does.
        total_steps: steps to make in all; the manifest's, unless `steer` changes it.
        position: rows taken so far; with the seed it decides which come next.
        adapter_version: the version that every worker has.
        published_step: the step of the newest checkpoint that was handed to the uploader, or gone on from.
        evaluated: whether the step that the run goes on from was evaluated; None where that is not known.
        adapter_uri: of the newest checkpoint that this run published.
    """

    spec: LoRARLJobSpec
    workers: WorkerGroup
    algorithm: Algorithm | None
    scorer: Scorer | None
    train_rows: Sequence[EncodedRow]
    eval_rows: Sequence[EncodedRow]
    order: DataOrder
    decode: Callable[[Sequence[Any]], list[str]]
    progress: Progress
    stop: asyncio.Event
    clock: StartClock
    steer: Callable[[Session], Awaitable[None]] | None = None
    total_steps: int = 0
    position: int = 0
    adapter_version: int = 0
    published_step: int = 0
    evaluated: bool | None = None
    adapter_uri: str | None = None
    _announced: int = 0
    _warned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin with the manifest's steps."""
        self.total_steps = self.total_steps or self.spec.trainer.steps

    async def tell_of_start(self) -> None:
        """Tell where the time went up to the first update."""
        parts = [*self.clock.parts, *await self.workers.start_parts()]
        ended = {part.name: part.end for part in parts}
        self.progress.emit(
            StartedUp(
                parts=tuple(parts),
                first_token=ended.get("first generation/first token"),
                first_update=ended["first update"],
            )
        )

    async def look_around(self) -> None:
        """Learn what has changed for the job since the step before."""
        if self.steer:
            await self.steer(self)

    def next_rows(self, count: int) -> list[EncodedRow]:
        """Take the next rows of the order."""
        indices = self.order.take(self.position, count)
        self.position += count
        return [self.train_rows[index] for index in indices]

    async def publish(self, step: int) -> None:
        """Hand a checkpoint of this step to the uploader of the first worker."""
        await self.workers.publish(step, self.position)
        self.published_step = step

    async def look_at_uploads(self) -> None:
        """Tell of checkpoints that have been published; stop where one cannot be."""
        if self._announced < self.published_step:
            self.announce(await self.workers.uploads())

    async def drain_uploads(self) -> None:
        """Wait until every checkpoint is published."""
        self.announce(await self.workers.drain_uploads())

    async def rescue_uploads(self, failure: Exception) -> None:
        """After a failure of the loop: publish what was handed over before, or keep it on the worker's disk. The failure comes first."""
        try:
            async with asyncio.timeout(2 * RESCUE_SECONDS):
                self.announce(await self.workers.drain_uploads(RESCUE_SECONDS))
        except (LorarlError, TimeoutError) as error:
            if not isinstance(error, WorkerError) and str(error) != str(failure):
                self.progress.emit(Warned(f"the last checkpoints could not be published after the failure: {error}"))

    def announce(self, published: Sequence[Published]) -> None:
        """Tell of checkpoints that were not told of yet."""
        for done in published:
            for warning in done.warnings:
                self.warn_once(warning, warning)
            if done.step > self._announced:
                self._announced, self.adapter_uri = done.step, done.adapter_uri
                self.progress.emit(
                    CheckpointDone(
                        step=done.step,
                        uri=done.adapter_uri,
                        version=done.adapter_version,
                        sha256=done.adapter_sha256,
                        published_at=done.published_at,
                    )
                )

    def warn_once(self, key: str, text: str) -> None:
        """Tell the user something, the first time that something of this key is said."""
        if key not in self._warned:
            self._warned.add(key)
            self.progress.emit(Warned(text))
