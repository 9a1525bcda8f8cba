"""Weighted sums of a few rows each: in PyTorch, or by a Triton kernel on a GPU.

Functions on tensors that autograd does not see: `lora/grouped_experts.py` puts them together. They add in
float32 and in a fixed order, round once, and read each row once: no copy of the rows for each sum is made.
Shape suffixes: T sums, K places of a sum, N rows, H columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from lorarl_trainer.kernels.dispatch import with_kernel

NOWHERE = -1
"""The place of a sum that has no row."""


def _triton() -> Any:
    from lorarl_trainer.kernels import triton_rows  # needs Triton, which a CPU has no use for

    return triton_rows


@with_kernel(lambda: _triton().sum_rows)
def sum_rows(rows_N_H: torch.Tensor, place_T_K: torch.Tensor, weights_T_K: torch.Tensor | None = None) -> torch.Tensor:
    """Return sums of the rows at these places, times their weights, [T, H]. A place may be `NOWHERE`."""
    taken_T_K_H = pad(rows_N_H, (0, 0, 0, 1))[place_T_K].float()  # the last row is of zeros
    if weights_T_K is not None:
        taken_T_K_H *= weights_T_K[..., None]
    return taken_T_K_H.sum(1).to(rows_N_H.dtype)
