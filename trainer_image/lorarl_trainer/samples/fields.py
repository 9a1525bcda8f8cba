"""What the fields of a completion and a sample hold. Wire format, dump and replay follow from it.

A field is one line of its dataclass: `kept: Annotated[Ints | None, Column("trained", np.int64)] = None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_type_hints

import numpy as np

type Per = Literal["sequence", "token", "computed", "response", "trained"]
"""What a field has a value of: the whole sequence; each token; each but the last, which is never computed; each token
of the response; each that is trained."""
type Arrays = dict[str, np.ndarray[Any, Any]]
"""Fields of several items by name, the items' arrays joined. `NAME.lengths` has the length of each, or `NONE`, or
`NUMBER`; without it, each item has a number."""

NONE, NUMBER = -1, -2


@dataclass(frozen=True)
class Column:
    """What a field holds.

    Attributes:
        per: what it has a value of. A number in the place of an array stands for that many equal ones.
        dtype: of its values; None for that of the arrays themselves.
        of_step: a step computes it from what the rollout made, so a dump of rollouts leaves it out.
    """

    per: Per
    dtype: type[np.generic] | None
    of_step: bool = False


@cache
def columns_of(kind: type) -> Mapping[str, Column]:
    """Return the columns of a dataclass by name, in the order of its fields.

    Raises:
        TypeError: a field is no column.
    """
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Column] = {}
    for field in fields(kind):
        (column,) = getattr(hints[field.name], "__metadata__", (None,))
        if not isinstance(column, Column):
            name = f"{kind.__name__}.{field.name}"
            raise TypeError(f"{name}: found a field without a column, expected Annotated[..., Column(...)]")
        found[field.name] = column
    return found


def to_arrays(items: Sequence[Any], columns: Mapping[str, Column]) -> Arrays:
    """Return these columns of completions or samples."""
    arrays: Arrays = {}
    for name, column in columns.items():
        arrays |= joined(name, [getattr(item, name) for item in items], column.dtype)
    return arrays


def from_arrays(kind: type, arrays: Arrays) -> list[Any]:
    """Return completions or samples of these columns. Those that have a default may be left out."""
    if not (names := [name for name in columns_of(kind) if name in arrays]):
        return []
    count = len(arrays.get(f"{names[0]}.lengths", arrays[names[0]]))
    columns = [parted(name, arrays, count) for name in names]
    return [kind(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def joined(name: str, values: Sequence[Any], dtype: type[np.generic] | None) -> Arrays:
    """Return one field of several items; nothing if all are None."""
    there = [value for value in values if value is not None]
    if not there:
        return {}
    lengths = np.fromiter(map(_length, values), np.int64, len(values))
    if (lengths == NUMBER).all():
        return {name: np.array(values, dtype)}
    flat = np.concatenate([np.atleast_1d(value) for value in there])
    return {name: np.ascontiguousarray(flat, dtype), f"{name}.lengths": lengths}


def parted(name: str, arrays: Arrays, count: int) -> list[Any]:
    """Undo `joined` for so many items."""
    if name not in arrays:
        return [None] * count
    flat, lengths = arrays[name], arrays.get(f"{name}.lengths")
    if lengths is None:
        return list(flat.tolist())
    ends = np.cumsum(np.where(lengths == NUMBER, 1, np.maximum(lengths, 0))).tolist()
    return [
        None if length == NONE else flat[end - 1].item() if length == NUMBER else flat[end - length : end]
        for length, end in zip(lengths.tolist(), ends, strict=True)
    ]


def _length(value: Any) -> int:
    if value is None:
        return NONE
    return NUMBER if isinstance(value, int | float | np.generic) else len(value)
