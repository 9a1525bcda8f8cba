"""What a page of the list shows: which runs, in which order, in which folders. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lorarl_trainer.dashboard.ordering import Column, Ordering
from lorarl_trainer.dashboard.row import Row


class Run(NamedTuple):
    """A run of a place.

    Attributes:
        id: names it in addresses.
        place: the place's name.
        state: now.
    """

    id: str
    place: str
    row: Row
    state: str

    @property
    def folder(self) -> str:
        """The folder that it shares with other runs of its place; empty if it is directly in the place."""
        return self.row.path.rpartition("/")[0]


@dataclass(frozen=True)
class Group:
    """The runs that share a folder, as a sweep's do."""

    place: str
    folder: str
    runs: Sequence[Run]

    @property
    def states(self) -> list[tuple[str, int]]:
        """How many runs have each state, the most common first."""
        return Counter(run.state for run in self.runs).most_common()

    @property
    def changed(self) -> float:
        """When one of them last wrote."""
        return max(run.row.changed for run in self.runs)


type Item = Run | Group

COLUMNS: Mapping[str, Column] = {
    "name": ("Name", False, lambda run: run.row.job.lower()),
    "model": ("Base model", False, lambda run: run.row.base_model.lower() or None),
    "algorithm": ("Algorithm", False, lambda run: run.row.algorithm or None),
    "state": ("State", False, lambda run: run.state),
    "step": ("Step", True, lambda run: run.row.step),
    "result": ("Result", True, lambda run: run.row.value),
    "seconds": ("s/step", True, lambda run: run.row.step_seconds),
    "moved": ("Last moved", True, lambda run: run.row.changed),
}


@dataclass(frozen=True)
class View(Ordering):
    """What a reader asked for.

    Attributes:
        text: what name, folder, model or algorithm contain.
        state, algorithm, model: as rows have them; empty for all.
        place, folder: the runs of one folder alone.
    """

    columns = COLUMNS
    sort: str = "moved"
    text: str = ""
    state: str = ""
    algorithm: str = ""
    model: str = ""
    place: str = ""
    folder: str = ""


def chosen(runs: Sequence[Run], view: View) -> list[Run]:
    """Return the runs of a view, in its order. Those without a value come last either way."""
    words = view.text.lower().split()

    def fits(run: Run) -> bool:
        row = run.row
        if view.state not in ("", run.state) or view.algorithm not in ("", row.algorithm):
            return False
        if view.model not in ("", row.base_model) or view.place not in ("", run.place):
            return False
        if view.folder and view.folder != run.folder:
            return False
        text = f"{row.job}\n{row.path}\n{row.base_model}\n{row.algorithm}\n{run.state}".lower()
        return all(word in text for word in words)

    return view.in_order([run for run in runs if fits(run)])


def grouped(runs: Sequence[Run]) -> Sequence[Item]:
    """Return the runs, those of a common folder as one item where the first of them is.

    A folder that holds all of them is no group.
    """
    members: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        members.setdefault((run.place, run.folder), []).append(run)
    if len(members) == 1:
        return list(runs)
    items: list[Item] = []
    for run in runs:
        together = members[run.place, run.folder]
        if not run.folder or len(together) == 1:
            items.append(run)
        elif together[0] is run:
            items.append(Group(run.place, run.folder, together))
    return items
