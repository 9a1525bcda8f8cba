"""A trial's way to the workers that trials of a sweep share. It starts no Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import WorkerError, in_one_line
from lorarl_trainer.launch.ray_cluster import stop_ray
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.group import WorkerGroup
from lorarl_trainer.workers.nodes import Nodes
from lorarl_trainer.workers.processes import Processes
from lorarl_trainer.workers.seats import Seat

SHARED = "LORARL_SHARED_WORKERS"
"""Environment variable of a trial: the file that says where its workers are. `lorarl sweep --share` sets it."""
ACTOR, NAMESPACE = "workers", "lorarl-sweep"
"""What Ray knows the shared worker by."""


@dataclass(frozen=True)
class Address:
    """Where shared workers are.

    Attributes:
        ray: the address of their Ray.
        devices: Ray's id of their placement group.
        log: the worker's output.
    """

    ray: str
    devices: str
    log: str

    def write(self, file: Path) -> None:
        """Write it, whole or not at all."""
        part = file.with_suffix(".part")
        part.write_text(json.dumps(asdict(self)), encoding="utf-8")
        part.replace(file)

    @classmethod
    def read(cls, file: Path) -> Address:
        """Read what `write` has written."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


class SharedCluster:
    """See `RayCluster`, of which it has what a run on one machine needs."""

    def __init__(self, job: LoRARLJob, file: Path, clock: StartClock) -> None:
        """Nothing starts before `async with`. `file`: has the `Address`."""
        self._job, self._file, self._clock = job, file, clock

    async def __aenter__(self) -> Self:
        with self._clock.part("import of Ray"):
            import ray  # noqa: F401

        return self

    async def workers(self) -> WorkerGroup:
        """Return the shared workers.

        Raises:
            WorkerError: they are gone.
        """
        with self._clock.part("Ray"):
            return await asyncio.to_thread(self._attached)

    async def replace_workers(self, clock: StartClock, *, lost: bool) -> WorkerGroup:
        """Raise `WorkerError`: the sweep starts the trial again, with other workers."""
        raise WorkerError("the workers that trials share are gone; the sweep starts the trial again")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the workers, which find out by the end of this process."""
        await asyncio.to_thread(stop_ray)

    def _attached(self) -> WorkerGroup:
        import ray
        from ray.util.placement_group import PlacementGroup

        logging.getLogger("ray").setLevel(logging.ERROR)
        spec = self._job.spec
        try:
            there = Address.read(self._file)
            ray.init(
                address=there.ray,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
            actor: Any = ray.get_actor(ACTOR)
            nodes = _Here(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(there.devices))))
        except Exception as error:  # Ray raises every type
            raise WorkerError(f"the workers that trials share are gone ({in_one_line(error)})") from error
        # Ray prints to standard output that a worker died. WorkerGroup reports that with the end of the worker's log.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        seat = Seat(actor, self._job.name, spec)
        return WorkerGroup(spec, Processes([seat], nodes, [Path(there.log)], end=lambda: None))


class _Here(Nodes):
    """This machine, with the workers. What is called on it runs in this process, which has imported its libraries."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [asyncio.to_thread(function, *arguments)]


def shared_workers() -> Path | None:
    """Return the file with the address of the workers that this run shares with others; None if it has its own."""
    file = os.environ.get(SHARED)
    return Path(file) if file else None
