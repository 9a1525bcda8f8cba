"""Triton kernels for the log-probabilities of given tokens: each reads the logits once.

`logprobs.py` has their plain twins and calls them on a GPU. They compute in float32.
Shape suffixes: C tokens of a chunk, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_LOGITS = 4096
"""Columns of logits that one program takes at a time."""


def softmax_statistics(
    logits_C_V: torch.Tensor, targets_C: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `logprobs.softmax_statistics`."""
    rows, columns = logits_C_V.shape
    largest_C, sum_C, of_target_C = torch.empty(3, rows, dtype=torch.float32, device=logits_C_V.device)
    _softmax_statistics[(rows,)](
        logits_C_V,
        targets_C,
        largest_C,
        sum_C,
        of_target_C,
        columns,
        logits_C_V.stride(0),
        scale,
        BLOCK=_LOGITS,
        num_warps=8,
    )
    return largest_C, sum_C, of_target_C


def target_minus_softmax(
    logits_C_V: torch.Tensor,
    targets_C: torch.Tensor,
    largest_C: torch.Tensor,
    sum_C: torch.Tensor,
    scale: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    """See `logprobs.target_minus_softmax`."""
    rows, columns = logits_C_V.shape
    gradient_C_V = torch.empty(rows, columns, dtype=dtype, device=logits_C_V.device)
    _target_minus_softmax[(rows, triton.cdiv(columns, _LOGITS))](
        logits_C_V,
        targets_C,
        largest_C,
        sum_C,
        gradient_C_V,
        columns,
        logits_C_V.stride(0),
        scale,
        BLOCK=_LOGITS,
        num_warps=8,
    )
    return gradient_C_V


@triton.jit
def _softmax_statistics(  # type: ignore[no-untyped-def]
    logits, targets, largest, sums, of_target, columns, stride, scale, BLOCK: tl.constexpr
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * stride
    # Each lane keeps its own maximum and sum. They are joined once, at the end.
    highest = tl.full([BLOCK], -1e30, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        z = tl.load(start + column, mask=column < columns, other=float("-inf")) * scale
        higher = tl.maximum(highest, z)
        total = total * tl.exp(highest - higher) + tl.exp(z - higher)
        highest = higher
    maximum = tl.max(highest)
    tl.store(largest + row, maximum)
    tl.store(sums + row, tl.sum(total * tl.exp(highest - maximum)))
    target = tl.load(targets + row)
    here = (target >= 0) & (target < columns)
    tl.store(of_target + row, tl.load(start + target, mask=here, other=0.0) * scale)


@triton.jit
def _target_minus_softmax(  # type: ignore[no-untyped-def]
    logits, targets, largest, sums, gradient, columns, stride, scale, BLOCK: tl.constexpr
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    z = tl.load(logits + row * stride + column, mask=inside, other=float("-inf")) * scale
    probability = tl.exp(z - tl.load(largest + row)) / tl.load(sums + row)
    # In float32 before rounding: if a probability is near 1, the difference is what counts.
    result = (tl.where(column == tl.load(targets + row), 1.0, 0.0) - probability) * scale
    tl.store(gradient + row * columns + column, result.to(gradient.dtype.element_ty), mask=inside)
