"""What a page of the list shows: which runs, in which order, in which folders. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import urlencode

from lorarl_trainer.dashboard.row import Row

PAGE = 100
"""Lines on a page."""


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
type _Key = Callable[[Run], str | float | None]

COLUMNS: Mapping[str, tuple[str, bool, _Key]] = {
    "name": ("Name", False, lambda run: run.row.job.lower()),
    "model": ("Base model", False, lambda run: run.row.base_model.lower() or None),
    "algorithm": ("Algorithm", False, lambda run: run.row.algorithm or None),
    "state": ("State", False, lambda run: run.state),
    "step": ("Step", True, lambda run: run.row.step),
    "result": ("Result", True, lambda run: run.row.value),
    "seconds": ("s/step", True, lambda run: run.row.step_seconds),
    "moved": ("Last moved", True, lambda run: run.row.changed),
}
"""The columns by their names in addresses: heading, whether the largest come first, and what is sorted by."""


@dataclass(frozen=True)
class View:
    """What a reader asked for.

    Attributes:
        text: what name, folder, model or algorithm contain.
        state, algorithm, model: as rows have them; empty for all.
        place, folder: the runs of one folder alone.
        sort: a key of COLUMNS.
        turned: the other way round.
        page: from 1.
    """

    text: str = ""
    state: str = ""
    algorithm: str = ""
    model: str = ""
    place: str = ""
    folder: str = ""
    sort: str = "moved"
    turned: bool = False
    page: int = 1

    def address(self, **changes: object) -> str:
        """Return the query of this view with changes, which go back to the first page unless they name one."""
        other = replace(self, **{"page": 1, **changes})  # type: ignore[arg-type]
        usual = View()
        given = {name: getattr(other, name) for name in View.__dataclass_fields__}
        return "?" + urlencode(
            {name: int(v) if v is True else v for name, v in given.items() if v != getattr(usual, name)}
        )

    def sorted_by(self, column: str) -> str:
        """Return the query that sorts by a column, or turns the order if this one does already."""
        return self.address(sort=column, turned=column == self.sort and not self.turned)

    def direction(self, column: str) -> str:
        """Return what `aria-sort` says of a column."""
        if column != self.sort:
            return "none"
        return "descending" if COLUMNS[column][1] != self.turned else "ascending"


def view_of(query: Mapping[str, list[str]]) -> View:
    """Return the view that a query asks for. What it has besides, or in another form, is not read."""
    given = {name: values[-1].strip() for name, values in query.items()}
    texts = {name: given.get(name, "") for name in ("text", "state", "algorithm", "model", "place", "folder")}
    page = given.get("page", "")
    return View(
        **texts,
        sort=given["sort"] if given.get("sort") in COLUMNS else "moved",
        turned=given.get("turned") == "1",
        page=max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 9 else 1,
    )


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

    _, largest_first, key = COLUMNS[view.sort]
    fitting = [(key(run), run) for run in runs if fits(run)]
    there = sorted(((value, run) for value, run in fitting if value is not None), key=lambda each: each[0])
    if largest_first != view.turned:
        there.reverse()
    return [run for _, run in there] + [run for value, run in fitting if value is None]


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
