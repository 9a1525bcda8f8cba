"""The Triton kernel that makes a weight of its codes in FP8: `fp8.py` has its plain twin and calls it on a GPU.

PyTorch converts e4m3 one number at a time: for the largest layer of a 7B model, 384 us on an H200, where the bytes to
move take 43.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

_CODES = 1024
"""Codes that one program takes of a row."""


def dequantized(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """See `fp8.dequantized`."""
    outputs, length = codes.shape
    weight = torch.empty(outputs, length, dtype=dtype, device=codes.device)
    _dequantize[(outputs, triton.cdiv(length, _CODES))](
        codes.contiguous().view(torch.uint8),
        scale.contiguous(),
        _numbers(codes.device),
        weight,
        length,
        CODES=_CODES,
    )
    return weight


@cache
def _numbers(device: torch.device) -> torch.Tensor:
    """Return what each byte stands for, [256]. Reading a table needs no GPU that knows the format."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)


@triton.jit
def _dequantize(codes, scale, numbers, weight, length, CODES: tl.constexpr) -> Any:  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * CODES + tl.arange(0, CODES)
    inside = place < length
    code = tl.load(codes + row * length + place, mask=inside, other=0).to(tl.int32)
    value = tl.load(numbers + code) * tl.load(scale + row)
    tl.store(weight + row * length + place, value.to(weight.dtype.element_ty), mask=inside)
