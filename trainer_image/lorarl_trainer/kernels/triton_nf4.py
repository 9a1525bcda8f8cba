"""The Triton kernel that makes a weight of its codes in NF4: `nf4.py` has its plain twin and calls it on a GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from lorarl_trainer.kernels.formats import BLOCK
from lorarl_trainer.kernels.nf4_tables import levels, steps

_BYTES = 512
"""Bytes of codes that one program takes of a row."""


def dequantized(codes: torch.Tensor, scales: torch.Tensor, of_row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See `nf4.dequantized`."""
    outputs, length = codes.shape
    weight = torch.empty(outputs, 2 * length, dtype=dtype, device=codes.device)
    _dequantize[(outputs, triton.cdiv(length, _BYTES))](
        codes.contiguous(),
        scales.contiguous(),
        of_row.contiguous(),
        levels(codes.device),
        steps(codes.device),
        weight,
        length,
        scales.shape[1],
        BYTES_OF_BLOCK=BLOCK // 2,
        BYTES=_BYTES,
        enable_fp_fusion=False,  # a sum that is fused with its product is rounded otherwise than the plain twin's
    )
    return weight


@triton.jit
def _dequantize(  # type: ignore[no-untyped-def]
    codes,
    scales,
    of_row,
    levels,
    steps,
    weight,
    length,
    blocks,
    BYTES_OF_BLOCK: tl.constexpr,
    BYTES: tl.constexpr,
) -> Any:
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    inside = place < length
    both = tl.load(codes + row * length + place, mask=inside, other=0).to(tl.int32)
    step = tl.load(scales + row * blocks + place // BYTES_OF_BLOCK, mask=inside, other=0).to(tl.int32)
    scale = tl.load(steps + step) * tl.load(of_row + 2 * row) + tl.load(of_row + 2 * row + 1)
    first, second = tl.load(levels + (both >> 4)) * scale, tl.load(levels + (both & 15)) * scale
    values = tl.interleave(first, second).to(tl.bfloat16).to(weight.dtype.element_ty)
    position = tl.program_id(1) * 2 * BYTES + tl.arange(0, 2 * BYTES)
    tl.store(weight + row * 2 * length + position, values, mask=position < 2 * length)
