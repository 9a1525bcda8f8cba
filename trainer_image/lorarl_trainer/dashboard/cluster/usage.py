"""GPU time by namespace and by queue. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lorarl_trainer.dashboard.cluster.jobs import RAN, WAITS, JobRow

MOST = 50
"""Lines of a table: those with the most GPU time."""


@dataclass
class Usage:
    """What the jobs of a namespace or a queue hold.

    Attributes:
        name: of the namespace or queue; empty for jobs without a queue.
        jobs, running, waiting: how many there are, of these in all.
        gpus: held now.
        held: GPU-seconds that their attempts held, as the operator counts.
        useful, lost, startup: GPU-seconds as the training reports them.
    """

    name: str
    jobs: int = 0
    running: int = 0
    waiting: int = 0
    gpus: int = 0
    held: float = 0.0
    useful: int = 0
    lost: int = 0
    startup: int = 0

    def add(self, row: JobRow, now: float) -> None:
        """Count a job. `now`: in seconds since 1970."""
        self.jobs += 1
        self.running += row.phase in RAN
        self.waiting += row.phase in WAITS
        self.gpus += row.holds
        self.held += row.held_at(now)
        self.useful += row.useful or 0
        self.lost += row.lost or 0
        self.startup += row.startup or 0


def by_namespace(rows: Iterable[JobRow], now: float) -> list[Usage]:
    """Return the sums of each namespace, the most GPU time first."""
    return _sums(rows, lambda row: row.namespace, now)


def by_queue(rows: Iterable[JobRow], now: float) -> list[Usage]:
    """Return the sums of each queue, which belongs to a namespace: `NAMESPACE/QUEUE`. Empty if no job has a queue."""
    queued = [row for row in rows if row.queue]
    return _sums(queued, lambda row: f"{row.namespace}/{row.queue}", now)


def _sums(rows: Iterable[JobRow], name: Callable[[JobRow], str], now: float) -> list[Usage]:
    sums: dict[str, Usage] = {}
    for row in rows:
        key = name(row)
        if key not in sums:
            sums[key] = Usage(key)
        sums[key].add(row, now)
    return sorted(sums.values(), key=lambda each: (-each.held, -each.gpus, each.name))
