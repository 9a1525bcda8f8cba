"""A shared worker in this process, and trials at its seats: their calls come from threads, as they come from drivers.

Only Ray is missing: one thread makes the turns, in the order in which they are asked for.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.checkpoint import Owner
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.progress import StepDone
from lorarl_trainer.protocols.workers import Built, JobCheckpoints
from lorarl_trainer.workers.seats import Seat
from lorarl_trainer.workers.shared import SharedWorker
from support.in_process import STOP, OneWorker, tiny_job
from support.loop_runs import run_in_process

_ASIDE = ("aside", "submit", "present", "process")


class Actor:
    """Stands for Ray's handle of a shared worker."""

    def __init__(self, shared: SharedWorker) -> None:
        self.shared, self._turns = shared, ThreadPoolExecutor(1)

    def __getattr__(self, method: str) -> Any:
        call = getattr(self.shared, method)

        def remote(*arguments: Any) -> Any:
            if method in _ASIDE:
                return call(*arguments)
            made = call if method != "results" else lambda *given: list(call(*given))
            return self._turns.submit(made, *arguments).result()

        return type("Method", (), {"remote": staticmethod(remote), "options": lambda self, **_: self})()


@dataclass
class Trial:
    """A trial at a seat, with what `run_in_process` asks of a worker."""

    actor: Actor
    name: str
    job: LoRARLJob
    out: Path
    process: int
    made_of: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seat = Seat(self.actor, self.name, self.job.spec, self.process)

    @property
    def spec(self) -> LoRARLJobSpec:
        return self.job.spec

    @property
    def worker(self) -> Any:
        """What takes the place of a worker: each method is the seat's."""
        seat = self.seat
        return type("AtSeat", (), {"__getattr__": lambda _, method: getattr(seat, method).remote})()

    def start(self, model: Path) -> Built:
        """Take the seat."""
        identity = training_identity(self.spec, "fingerprint")
        of = JobCheckpoints(Owner(self.job.name, self.job.uid), identity, self.out / "unpublished", self.made_of)
        self.seat.open_checkpoints.remote(of)
        self.built: Built = self.seat.start.remote(model, STOP, None, self.seat.memory.remote(), None)
        return self.built

    def train(self, **how: Any) -> list[StepDone]:
        """Train to the end, as `lorarl run` does."""
        return asyncio.run(run_in_process(self, workers=OneWorker(self.worker), **how))  # type: ignore[arg-type]


def trial(actor: Actor, model: Path, out: Path, process: int | None = None, **changes: object) -> Trial:
    """A trial of the tiny job with its own folder. It ends with `process`, by default this one."""
    out.mkdir(exist_ok=True)
    return Trial(actor, out.name, tiny_job(model, out, **changes), out, process or os.getpid())


def together(trials: Sequence[Trial], **how: Any) -> list[list[StepDone]]:
    """Train trials at the same time."""
    with ThreadPoolExecutor(len(trials)) as drivers:
        return list(drivers.map(lambda one: one.train(**how), trials))


def ended_process() -> subprocess.Popen[bytes]:
    """A process that ends when it is killed."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
