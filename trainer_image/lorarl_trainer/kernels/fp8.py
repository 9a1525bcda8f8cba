"""A frozen linear layer in FP8: e4m3 codes, and one scale for each output channel.

Trainer and engine compute with the same two tensors, and by the same function of them. A scale is a power of two, so
the weight that codes and scale stand for, W = codes * scale, is exact in bf16 and in float32: nothing is rounded after
the checkpoint's weights were. Activations are not quantized.

e4m3: P. Micikevicius et al., "FP8 Formats for Deep Learning", arXiv:2209.05433, table 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

CODES = torch.float8_e4m3fn
SCALE = "weight_scale"
"""The name of a layer's scales, beside its `weight`, in the trainer's model and in vLLM's."""
_LARGEST = 448.0
_LEAST_EXPONENT = -100
"""A row of smaller values is taken for zeros: its scale would not be exact."""


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes [out, in] and scales [out] in float32 that are nearest to a weight [out, in].

    The scale of a row with a value that is not finite is NaN.
    """
    weight = weight.float()
    largest = weight.abs().amax(dim=1)
    _, exponent = torch.frexp(largest / _LARGEST)
    scale = torch.ldexp(torch.ones_like(largest), exponent.clamp(min=_LEAST_EXPONENT))
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    return (weight / scale[:, None]).to(CODES), scale


def dequantized(codes: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] in float32 or bf16, exactly."""
    return codes.to(dtype).mul_(scale.to(dtype)[:, None])


def rounded(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a weight of a model's files becomes that is read in a precision and quantized."""
    return dequantized(*quantized(weight.to(dtype)), dtype)


def weight_of(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] of a linear layer of the trainer's or vLLM's: its own, or made of its codes."""
    weight: torch.Tensor = layer.weight
    return dequantized(weight, getattr(layer, SCALE), dtype) if weight.dtype == CODES else weight


class Fp8Linear(torch.nn.Linear):
    """A linear layer whose `weight` [out, in] becomes codes as soon as it is loaded. Biases stay as they are.

    Attributes:
        compute_dtype: of its products. PEFT gives an adapter this dtype.
        weight_scale: [out], float32.
    """

    weight_scale: torch.nn.Parameter

    def __init__(self, replaced: torch.nn.Linear) -> None:
        """Take the place of a layer on the meta device, which has no weights yet."""
        weight = replaced.weight
        bias = replaced.bias is not None
        super().__init__(replaced.in_features, replaced.out_features, bias, device=weight.device, dtype=weight.dtype)
        self.compute_dtype = weight.dtype
        scale = torch.empty(replaced.out_features, dtype=torch.float32, device=weight.device)
        self.register_parameter(SCALE, torch.nn.Parameter(scale, requires_grad=False))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return x Wᵀ + c [..., out] for x [..., in]."""
        output: torch.Tensor = _FrozenProduct.apply(input, self.weight, self.weight_scale, self.bias)
        return output


class _FrozenProduct(torch.autograd.Function):
    """y = x Wᵀ + c and dX = dY W. The weight exists while a product is at work: only its codes are kept."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        ctx.save_for_backward(codes, scale)
        return linear(x, dequantized(codes, scale, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        codes, scale = ctx.saved_tensors
        return gradient @ dequantized(codes, scale, gradient.dtype), None, None, None
