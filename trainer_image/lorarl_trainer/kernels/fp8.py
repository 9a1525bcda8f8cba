"""A frozen weight in FP8: e4m3 codes, and one scale for each output channel.

A scale is a power of two, so the weight that codes and scale stand for, W = codes * scale, is exact in bf16 and in
float32: nothing is rounded after the checkpoint's weights were.

e4m3: P. Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433, table 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lorarl_trainer.kernels.dispatch import with_kernel

CODES = torch.float8_e4m3fn
_LARGEST = 448.0
_LEAST_EXPONENT = -100
"""A row of smaller values is taken for zeros: its scale would not be exact."""


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes [out, in] and scales [out, 1] in float32 that are nearest to a weight [out, in].

    The scale of a row with a value that is not finite is NaN.
    """
    weight = weight.float()
    largest = weight.abs().amax(dim=1, keepdim=True)
    _, exponent = torch.frexp(largest / _LARGEST)
    scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(min=_LEAST_EXPONENT))
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    return (weight / scale).to(CODES), scale


def _load() -> Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]:
    from lorarl_trainer.kernels import triton_fp8

    return triton_fp8.dequantized


@with_kernel(_load)
def dequantized(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] in float32 or bf16, exactly."""
    return codes.to(dtype).mul_(scale.to(dtype))
