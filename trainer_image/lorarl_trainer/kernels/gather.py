"""Rows of a matrix in any order and any number of times, with gradients that add up in a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from lorarl_trainer.devices.transfer import to_device


class Gather:
    """Takes rows of a matrix: `gather(matrix)` is `matrix[index]`, differentiable.

    A row that is taken several times gets the sum of its gradients, in float32 and always in the same order.

    Attributes:
        identity: every row is taken once, in order.
        index: the row that each taken row comes from.
        order, ends: where each row was taken to: `order[ends[row]:ends[row + 1]]`.
    """

    def __init__(self, index: np.ndarray, of: int, device: torch.device) -> None:
        """`index` points into a matrix of `of` rows."""
        self.identity = np.array_equal(index, np.arange(of))
        self.index = to_device(index, device)
        self.order = to_device(np.argsort(index, kind="stable"), device)
        self.ends = to_device(np.concatenate([[0], np.cumsum(np.bincount(index, minlength=of))]), device)

    def __call__(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the rows of `matrix`, [of, ...]."""
        if self.identity:
            return matrix
        taken: torch.Tensor = _GatherRows.apply(matrix, self)
        return taken

    def take(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the rows without their gradient, which `summed` gives."""
        return matrix if self.identity else matrix.index_select(0, self.index)

    def summed(self, taken: torch.Tensor) -> torch.Tensor:
        """Return for each row of the matrix the sum of the rows that were taken from it, [of, ...]."""
        if self.identity:
            return taken
        # One bag per row of the matrix, of the places that it was taken to. Unlike index_add_, this adds up in float32
        # and without a race.
        sums = embedding_bag(
            self.order, taken.reshape(len(self.order), -1), self.ends, mode="sum", include_last_offset=True
        )
        return sums.view(-1, *taken.shape[1:])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: torch.Tensor, gather: Gather) -> torch.Tensor:
        ctx.gather = gather
        return gather.take(matrix)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.gather.summed(gradient), None
