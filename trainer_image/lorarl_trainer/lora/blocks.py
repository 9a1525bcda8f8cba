"""Rectangular blocks of an adapter: where they are in other tensors, and which slices take one layout to another.

Megatron and vLLM both keep an adapter in their own tensors: fused, interleaved, split over ranks. Neither's rules are
repeated here. Numbers are sent through their own code, and the layout is where the numbers arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Indices = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float32]
"""Whole numbers, as they come from an adapter's tensors."""
_NOT_WHOLE = "the elements are not whole rows and columns"


@dataclass(frozen=True)
class Block:
    """`tensor[rows][:, columns]` is `adapter[name][hf_rows][:, hf_columns]`, adapter in Hugging Face names."""

    name: str
    rows: Indices
    columns: Indices
    hf_rows: Indices
    hf_columns: Indices


class Rectangle(NamedTuple):
    """A block of whole rows and columns: which they are here, and which they are there."""

    here_rows: Indices
    here_columns: Indices
    there_rows: Indices
    there_columns: Indices


@dataclass(frozen=True)
class SliceCopy:
    """`target[target_rows, target_columns] = source[source_rows, source_columns]`, each a run of neighbours."""

    source_rows: slice
    source_columns: slice
    target_rows: slice
    target_columns: slice


@dataclass(frozen=True)
class Copy:
    """`target[...] = source * scale`: two views of the same two-dimensional shape and type, of the tensor `name`."""

    name: str
    source: torch.Tensor
    target: torch.Tensor
    scale: float


def rectangles(owners: Numbers, rows: Numbers, columns: Numbers) -> Iterator[tuple[int, Rectangle]]:
    """Yield each owner of elements of a matrix, in ascending order, and the rectangle that its elements are.

    A large adapter has hundreds of megabytes of such numbers, and a mixture of experts has tens of thousands of
    matrices. So this passes over each matrix a few times, and copies next to nothing.

    Args:
        owners: each element's owner, [R, C]: 0 if it has none.
        rows: the row that each element came from, [R, C].
        columns: the column that each element came from, [R, C].

    Raises:
        ValueError: an owner's elements are not a block of whole rows and columns, here or there.
    """
    distinct = _distinct(owners)
    if len(distinct) == 1 and distinct[0]:
        yield distinct[0], _whole(rows, columns)
        return
    for number in distinct:
        if number:
            yield number, _rectangle(owners == number, rows, columns)


def _distinct(numbers: Numbers) -> list[int]:
    """Return the distinct whole numbers of a matrix in ascending order: faster than by sorting them."""
    low, high = int(numbers.min()), int(numbers.max())
    if low == high:
        return [low]
    return [low + int(number) for number in np.flatnonzero(np.bincount((numbers - low).astype(np.intp).ravel()))]


def _rectangle(marked: npt.NDArray[np.bool_], rows: Numbers, columns: Numbers) -> Rectangle:
    here_rows, here_columns = np.flatnonzero(marked.any(1)), np.flatnonzero(marked.any(0))
    here = _span(here_rows), _span(here_columns)
    if not marked[here[0]][:, here[1]].all():
        raise ValueError(_NOT_WHOLE)
    there = _whole(*(numbers[here[0]][:, here[1]] for numbers in (rows, columns)))
    return Rectangle(_shared(here_rows), _shared(here_columns), there.there_rows, there.there_columns)


def _whole(rows: Numbers, columns: Numbers) -> Rectangle:
    """Return the rectangle that all elements of a matrix are."""
    if not ((rows == rows[:, :1]).all() and (columns == columns[:1]).all()):
        raise ValueError(_NOT_WHOLE)
    there = (_shared(numbers.astype(np.int64)) for numbers in (rows[:, 0], columns[0]))
    return Rectangle(*(_count(0, length) for length in rows.shape), *there)


def _span(indices: Indices) -> slice | Indices:
    """Return indices in ascending order as a slice if they are neighbours: a matrix gives a view for that."""
    first, last = int(indices[0]), int(indices[-1])
    return slice(first, last + 1) if last - first + 1 == len(indices) else indices


@lru_cache(1024)
def _count(first: int, end: int) -> Indices:
    """Return the numbers from `first` to before `end`, always as the same array, which nothing may change."""
    return np.arange(first, end)


def _shared(indices: Indices) -> Indices:
    """Return indices as the array of `_count` if they go up by one, which they mostly do."""
    counted = _counted_like(indices)
    return counted if counted is not None and np.array_equal(indices, counted) else indices


def _counted_like(indices: Indices) -> Indices | None:
    """Return the array of `_count` between the same ends; None if it would have another length."""
    first, end = int(indices[0]), int(indices[-1]) + 1
    return _count(first, end) if end - first == len(indices) else None


def as_slice(indices: Indices) -> slice | None:
    """Return indices of a block as a slice if they are known to go up by one."""
    return slice(int(indices[0]), int(indices[-1]) + 1) if indices is _counted_like(indices) else None


def copies(source: Block, target: Block) -> Iterator[SliceCopy]:
    """Yield the copies that bring the elements that two blocks of one adapter tensor share from one to the other."""
    assert source.name == target.name, "blocks of different tensors have nothing in common"
    rows = list(_runs(source.hf_rows, source.rows, target.hf_rows, target.rows))
    for source_columns, target_columns in _runs(source.hf_columns, source.columns, target.hf_columns, target.columns):
        for source_rows, target_rows in rows:
            yield SliceCopy(source_rows, source_columns, target_rows, target_columns)


def _runs(
    source_keys: Indices, source: Indices, target_keys: Indices, target: Indices
) -> Iterator[tuple[slice, slice]]:
    """Yield the longest runs in which both sides go up by one, over the keys that both have."""
    slices = [as_slice(indices) for indices in (source_keys, source, target_keys, target)]
    if None not in slices:
        yield from _run(*slices)  # type: ignore[arg-type]  # none is None
        return
    _, at_source, at_target = np.intersect1d(source_keys, target_keys, assume_unique=True, return_indices=True)
    froms, tos = source[at_source], target[at_target]
    breaks = np.flatnonzero((np.diff(froms) != 1) | (np.diff(tos) != 1)) + 1
    for part in np.split(np.arange(len(froms)), breaks):
        if len(part):
            yield slice(int(froms[part[0]]), int(froms[part[-1]]) + 1), slice(int(tos[part[0]]), int(tos[part[-1]]) + 1)


def _run(source_keys: slice, source: slice, target_keys: slice, target: slice) -> Iterator[tuple[slice, slice]]:
    """Yield the run over the keys that both have, where all indices go up by one; none if they have none."""
    first, end = max(source_keys.start, target_keys.start), min(source_keys.stop, target_keys.stop)
    if first < end:
        of_source, of_target = source.start - source_keys.start, target.start - target_keys.start
        yield slice(first + of_source, end + of_source), slice(first + of_target, end + of_target)
