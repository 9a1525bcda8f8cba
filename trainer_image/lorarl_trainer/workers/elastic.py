"""On how many machines an elastic job trains (`cluster.minNodes`): what Ray has room for, and how long others may take.

The manifest's batch stays: its samples are dealt out to the workers that there are.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.workers.nodes import reserve

PLACED_SECONDS = 10.0
"""How long Ray may need to place workers on machines that it has."""


def is_elastic(spec: LoRARLJobSpec) -> bool:
    """Return whether the job may train on fewer machines than it asks for."""
    return spec.cluster.fewest_nodes < spec.cluster.nodes


def reserve_some(
    spec: LoRARLJobSpec, wait_seconds: float, abandoned: threading.Event, enough: int | None = None
) -> tuple[LoRARLJobSpec, Any] | None:
    """Reserve devices on all machines of a job, or on those that are there when no other has come for a while.

    Args:
        spec: the job.
        wait_seconds: how long to wait for missing machines, from when there last were more than ever before.
        abandoned: ends the wait.
        enough: how many machines end the wait for others at once; None for all of the job.

    Returns:
        The job on so many machines, and Ray's placement group; None if `abandoned` was set first.
    """
    wait = _Wait(spec, wait_seconds, enough)
    while not abandoned.is_set():
        if (devices := reserve(spec, abandoned, wait.is_over)) is not None:
            return spec, devices
        if abandoned.is_set():
            break
        fewer, until = spec.on_nodes(wait.machines), time.monotonic() + PLACED_SECONDS
        if (devices := reserve(fewer, abandoned, partial(_is_past, until))) is not None:
            return fewer, devices
    return None


def machines_with_room(spec: LoRARLJobSpec) -> int:
    """Return how many of Ray's machines are made for a job's workers, whether these are there or not."""
    import ray

    wanted = {"CPU": spec.workers_per_node, "GPU": spec.cluster.gpus_per_node}
    return sum(
        1
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(name, 0) >= count for name, count in wanted.items())
    )


class Room:
    """Whether there are machines for more workers, after the present ones have trained for a while."""

    def __init__(self, asked: LoRARLJobSpec, present: LoRARLJobSpec, seconds: float) -> None:
        """Make one when the present workers start.

        Args:
            asked: the job as its manifest has it.
            present: the job on the machines of the present workers.
            seconds: how long they train at least, so that machines that come and go cost no more than they bring.
        """
        self._asked, self._present = asked, present
        self._from = time.monotonic() + seconds

    def is_more(self) -> bool:
        """Return whether more workers than the present ones could start now."""
        present = self._present.cluster.nodes
        if present >= self._asked.cluster.nodes or time.monotonic() < self._from:
            return False
        return machines_with_room(self._asked) > present


def _is_past(until: float) -> bool:
    return time.monotonic() >= until


class _Wait:
    """A wait for all machines of a job. It is over when enough are there, or when for too long no other came."""

    def __init__(self, spec: LoRARLJobSpec, seconds: float, enough: int | None) -> None:
        self._spec, self._seconds, self._enough = spec, seconds, enough or spec.cluster.nodes
        self._most, self._since = -1, time.monotonic()
        self.machines = 0
        """Those that were there at the last look, up to all of the job."""

    def is_over(self) -> bool:
        cluster = self._spec.cluster
        if not is_elastic(self._spec):
            return False
        self.machines = min(machines_with_room(self._spec), cluster.nodes)
        if self.machines > self._most:
            self._most, self._since = self.machines, time.monotonic()
        over = self.machines >= self._enough or time.monotonic() - self._since >= self._seconds
        return over and cluster.fewest_nodes <= self.machines < cluster.nodes
