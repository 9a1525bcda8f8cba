"""How a list is sorted and parted into pages, and the addresses that say so. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

PAGE = 100
"""Lines on a page."""
_LAST = ("sort", "turned", "page")

type Column = tuple[str, bool, Callable[[Any], Any]]
"""A heading, whether the largest come first, and what is sorted by: None for an item without a value."""


@dataclass(frozen=True)
class Ordering:
    """Which part of a list, in which order. Lists add what they filter by.

    Attributes:
        columns: by their names in addresses.
        sort: one of these names.
        turned: the other way round.
        page: from 1.
    """

    columns: ClassVar[Mapping[str, Column]]
    sort: str = ""
    turned: bool = False
    page: int = 1

    @classmethod
    def of_query(cls, query: Mapping[str, list[str]]) -> Self:
        """Return what a query asks for. What it has besides, or in another form, is not read."""
        given = {name: values[-1].strip() for name, values in query.items()}
        usual, page = cls(), given.get("page", "")
        texts = {each.name: given.get(each.name, "") for each in fields(cls) if each.name not in _LAST}
        return cls(
            **texts,
            sort=given["sort"] if given.get("sort") in cls.columns else usual.sort,
            turned=given.get("turned") == "1",
            page=max(1, int(page)) if page.isascii() and page.isdecimal() and len(page) < 9 else 1,
        )

    def address(self, **changes: object) -> str:
        """Return the query of this view with changes, which go back to the first page unless they name one."""
        other, usual = replace(self, **{"page": 1, **changes}), type(self)()  # type: ignore[arg-type]
        names = sorted((each.name for each in fields(self)), key=lambda name: name in _LAST)
        given = {name: getattr(other, name) for name in names}
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
        return "descending" if self.columns[column][1] != self.turned else "ascending"

    def in_order[Item](self, items: Sequence[Item], **keys: Callable[[Item], Any]) -> list[Item]:
        """Return the items sorted. Those without a value come last either way.

        `keys`: what to sort by instead, by names of columns, where it depends on more than the item.
        """
        _, largest_first, usual = self.columns[self.sort]
        key = keys.get(self.sort, usual)
        keyed = [(key(item), item) for item in items]
        there = sorted(((value, item) for value, item in keyed if value is not None), key=lambda each: each[0])
        if largest_first != self.turned:
            there.reverse()
        return [item for _, item in there] + [item for value, item in keyed if value is None]

    def part[Item](self, items: Sequence[Item]) -> tuple[Sequence[Item], int, int]:
        """Return the items of the page, its number, and that of the last page."""
        last = max(1, -(-len(items) // PAGE))
        at = min(self.page, last)
        return items[(at - 1) * PAGE : at * PAGE], at, last
