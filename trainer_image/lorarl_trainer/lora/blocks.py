"""Rectangular blocks of an adapter: where they are in other tensors, and which slices take one layout to another.

Megatron and vLLM both keep an adapter in their own tensors: fused, interleaved, split over ranks. Neither's rules are
repeated here. Numbers are sent through their own code, and the layout is where the numbers arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """`tensor[rows][:, columns]` is `adapter[name][hf_rows][:, hf_columns]`, adapter in Hugging Face names."""

    name: str
    rows: Indices
    columns: Indices
    hf_rows: Indices
    hf_columns: Indices


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


def rectangle(
    marked: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor
) -> tuple[Indices, Indices, Indices, Indices]:
    """Return the marked elements of a tensor as a block of whole rows and columns, and where those came from.

    Args:
        marked: which elements, [R, C] of bool, at least one.
        rows: the row that each element came from, [R, C].
        columns: the column that each element came from, [R, C].

    Returns:
        Rows and columns here, then rows and columns there.

    Raises:
        ValueError: the elements are not a block of whole rows and columns, here or there.
    """
    here_rows, here_columns = marked.any(1).nonzero().flatten(), marked.any(0).nonzero().flatten()
    there_rows = rows[here_rows, here_columns[0]].long()
    there_columns = columns[here_rows[0], here_columns].long()
    grid = here_rows[:, None], here_columns
    if not (
        marked[grid].all()
        and torch.equal(rows[grid].long(), there_rows[:, None].expand(marked[grid].shape))
        and torch.equal(columns[grid].long(), there_columns.expand(marked[grid].shape))
    ):
        raise ValueError("the elements are not whole rows and columns")
    return here_rows.cpu().numpy(), here_columns.cpu().numpy(), there_rows.cpu().numpy(), there_columns.cpu().numpy()


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
    _, at_source, at_target = np.intersect1d(source_keys, target_keys, assume_unique=True, return_indices=True)
    froms, tos = source[at_source], target[at_target]
    breaks = np.flatnonzero((np.diff(froms) != 1) | (np.diff(tos) != 1)) + 1
    for part in np.split(np.arange(len(froms)), breaks):
        if len(part):
            yield slice(int(froms[part[0]]), int(froms[part[-1]]) + 1), slice(int(tos[part[0]]), int(tos[part[-1]]) + 1)
