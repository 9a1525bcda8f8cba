"""What a page of a cluster's jobs shows: which of them, in which order, in which sweeps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lorarl_trainer.dashboard.cluster.jobs import JobRow
from lorarl_trainer.dashboard.ordering import Column, Ordering

COLUMNS: Mapping[str, Column] = {
    "name": ("Job", False, lambda row: row.name),
    "namespace": ("Namespace", False, lambda row: row.namespace),
    "queue": ("Queue", False, lambda row: row.queue or None),
    "state": ("State", False, lambda row: (row.phase, row.reason)),
    "step": ("Step", True, lambda row: row.step),
    "result": ("Reward", True, lambda row: row.reward),
    "gpus": ("GPUs", True, lambda row: row.gpus),
    "hours": ("GPU-h", True, lambda row: row.held),
    "created": ("Created", True, lambda row: row.created),
}


@dataclass(frozen=True)
class JobView(Ordering):
    """What a reader asked for.

    Attributes:
        text: what name, namespace, queue, model, algorithm, reason or message contain.
        phase, namespace, queue, reason: as lines have them; empty for all.
        maker: the jobs of one sweep or schedule alone, which is `sweep/NAME` of a namespace.
    """

    columns = COLUMNS
    sort: str = "created"
    text: str = ""
    phase: str = ""
    namespace: str = ""
    queue: str = ""
    reason: str = ""
    maker: str = ""


@dataclass(frozen=True)
class Made:
    """The jobs of one sweep or schedule."""

    namespace: str
    maker: str
    rows: Sequence[JobRow]

    @property
    def phases(self) -> list[tuple[str, int]]:
        """How many jobs have each phase, the most common first."""
        return Counter(row.phase for row in self.rows).most_common()

    @property
    def gpus(self) -> int:
        """The GPUs that they hold now."""
        return sum(row.holds for row in self.rows)

    @property
    def created(self) -> float:
        """When the newest of them was created."""
        return max(row.created for row in self.rows)

    def held_at(self, now: float) -> float:
        """Return the GPU-seconds that they have held. `now`: in seconds since 1970."""
        return sum(row.held_at(now) for row in self.rows)


type Line = JobRow | Made


def chosen(rows: Sequence[JobRow], view: JobView, now: float) -> list[JobRow]:
    """Return the jobs of a view, in its order. `now`: in seconds since 1970."""
    words = view.text.lower().split()

    def fits(row: JobRow) -> bool:
        wanted = (view.phase, view.namespace, view.queue, view.reason, view.maker)
        has = (row.phase, row.namespace, row.queue, row.reason, row.maker)
        if any(want not in ("", found) for want, found in zip(wanted, has, strict=True)):
            return False
        if not words:
            return True
        text = "\n".join((row.name, row.namespace, row.queue, row.maker, row.base_model, row.algorithm, row.phase))
        text = f"{text}\n{row.reason}\n{row.message}".lower()
        return all(word in text for word in words)

    return view.in_order([row for row in rows if fits(row)], hours=lambda row: row.held_at(now))


def grouped(rows: Sequence[JobRow]) -> Sequence[Line]:
    """Return the jobs, those of a sweep or schedule as one line where the first of them is."""
    members: dict[tuple[str, str], list[JobRow]] = {}
    for row in rows:
        if row.maker:
            members.setdefault((row.namespace, row.maker), []).append(row)
    lines: list[Line] = []
    for row in rows:
        together = members.get((row.namespace, row.maker), [row])
        if len(together) == 1:
            lines.append(row)
        elif together[0] is row:
            lines.append(Made(row.namespace, row.maker, together))
    return lines
