"""A frozen weight in NF4: two codes a byte, a scale for 64 weights of a row, and two numbers a row for its scales.

A code stands for one of 16 levels between -1 and 1. A block's scale is the largest absolute value of its weights. The
scales of a row are quantized too: a byte stands for one of 256 steps, and scale = step * spread + mean of the row.

    W = level * scale, computed in float32 and rounded to bf16

So W is the same number in bf16 and in float32. Each row is what bitsandbytes 0.50 makes of that row alone, apart from
the last rounding where it computes in float32. bitsandbytes takes a whole tensor's mean, and a spread for 256 scales in
the order of memory: these would reach over the rows of layers that vLLM fuses. Of a row of more than 16,384 weights,
only the scales' last digits differ from bitsandbytes'.

T. Dettmers et al., "QLoRA", arXiv:2305.14314, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch.nn.functional import embedding, pad

from lorarl_trainer.kernels.dispatch import with_kernel
from lorarl_trainer.kernels.formats import BLOCK
from lorarl_trainer.kernels.nf4_tables import levels, steps

_LEAST = 1e-38
"""A block of smaller values is taken for zeros."""


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what is nearest to a weight [out, in], whose inputs are an even number.

    Returns:
        Codes [out, in / 2] in uint8, an even input's in the upper half; scales [out, blocks] in uint8; and the spread
        and mean of each row's scales [out, 2] in float32, NaN for a row with a value that is not finite.
    """
    outputs, inputs = weight.shape
    blocks = pad(weight.float(), (0, -inputs % BLOCK)).view(outputs, -1, BLOCK)
    largest = blocks.abs().amax(dim=2)
    codes = _nearest(blocks * _inverse(largest)[..., None], levels(weight.device)).view(outputs, -1)[:, :inputs]
    mean = largest.mean(dim=1, keepdim=True)
    spread = (largest - mean).abs().amax(dim=1, keepdim=True)
    scales = _nearest((largest - mean) * _inverse(spread), steps(weight.device))
    of_row = torch.cat([spread, mean], dim=1)
    return codes[:, ::2] << 4 | codes[:, 1::2], scales, torch.where(of_row.isfinite(), of_row, torch.nan)


def _load() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]:
    from lorarl_trainer.kernels import triton_nf4

    return triton_nf4.dequantized


@with_kernel(_load)
def dequantized(codes: torch.Tensor, scales: torch.Tensor, of_row: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] in float32 or bf16: the same numbers."""
    inputs = 2 * codes.shape[1]
    scale = embedding(scales.int(), steps(codes.device)[:, None])[..., 0] * of_row[:, :1] + of_row[:, 1:]
    weight = embedding(codes.int(), _pairs(codes.device)).flatten(1)
    weight *= scale.repeat_interleave(BLOCK, dim=1)[:, :inputs]
    return weight.to(torch.bfloat16).to(dtype)


def _nearest(values: torch.Tensor, ascending: torch.Tensor) -> torch.Tensor:
    """Return the place of what is nearest to each value, in uint8."""
    return torch.bucketize(values, (ascending[:-1] + ascending[1:]) / 2, out_int32=True).to(torch.uint8)


def _inverse(largest: torch.Tensor) -> torch.Tensor:
    return 1.0 / largest.clamp(min=_LEAST)


@cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Return the levels of both codes of each byte, [256, 2]."""
    found = levels(device)
    return torch.stack([found.repeat_interleave(16), found.repeat(16)], dim=1)
