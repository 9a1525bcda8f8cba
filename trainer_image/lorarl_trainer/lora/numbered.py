"""Numbers for the elements of many matrices, made, cut and brought to the host all at once.

A mixture of 48 layers with 128 experts has 36,864 matrices. On a GPU, a kernel and a wait for each would take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lorarl_trainer.devices.transfer import to_host
from lorarl_trainer.lora.blocks import Numbers


def owner_numbers(shapes: Sequence[Sequence[int]], first: int, device: torch.device) -> torch.Tensor:
    """Return, for the elements of all matrices of these shapes in turn, the matrix, from `first` on."""
    sizes = torch.tensor([rows * columns for rows, columns in map(_two, shapes)], device=device)
    return torch.arange(first, first + len(shapes), dtype=torch.float32, device=device).repeat_interleave(sizes)


def row_numbers(shapes: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return, for the elements of all matrices of these shapes in turn, the row."""

    def of(rows: int, columns: int) -> torch.Tensor:
        return torch.arange(rows, dtype=torch.float32, device=device).repeat_interleave(columns)

    return _of_each_shape(shapes, of)


def column_numbers(shapes: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return, for the elements of all matrices of these shapes in turn, the column."""

    def of(rows: int, columns: int) -> torch.Tensor:
        return torch.arange(columns, dtype=torch.float32, device=device).repeat(rows)

    return _of_each_shape(shapes, of)


def _of_each_shape(shapes: Sequence[Sequence[int]], of: Callable[[int, int], torch.Tensor]) -> torch.Tensor:
    matrices = [_two(shape) for shape in shapes]
    known = {matrix: of(*matrix) for matrix in set(matrices)}
    return torch.cat([known[matrix] for matrix in matrices])


def _two(shape: Sequence[int]) -> tuple[int, int]:
    """Return a shape as that of a matrix: a vector is a column."""
    rows, columns = shape if len(shape) == 2 else (shape[0], 1)
    return rows, columns


def split(flat: torch.Tensor, shapes: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """Return the tensors of these shapes that follow each other in a flat one, as views."""
    parts = flat.split([math.prod(shape) for shape in shapes])
    return [part.view(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def on_host(tensors: Sequence[torch.Tensor]) -> list[Numbers]:
    """Return float32 tensors as arrays. They come in one transfer: waiting for each would take longer."""
    if not tensors or not tensors[0].is_cuda:
        return [tensor.numpy() for tensor in tensors]
    flat = to_host(torch.cat([tensor.flatten() for tensor in tensors]))
    return [tensor.numpy() for tensor in split(flat, [tensor.shape for tensor in tensors])]
