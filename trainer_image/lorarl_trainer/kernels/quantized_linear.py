"""A frozen linear layer whose weight is held in a format of `formats.py`, for trainer and engine.

Both compute with the same tensors, and by the same function of them. Activations are not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_api.v1alpha1 import Quantization
from lorarl_trainer.kernels import fp8, nf4
from lorarl_trainer.kernels.formats import Format

_NUMBERS: Mapping[Quantization, ModuleType] = {"fp8": fp8, "nf4": nf4}


def empty(of: Format, outputs: int, inputs: int, device: Any = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a weight with their names, without values."""
    for held in of.tensors:
        yield held.name, torch.empty(held.shape(outputs, inputs), dtype=getattr(torch, held.dtype), device=device)


def quantized(of: Format, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors, by their names, that are nearest to a weight [out, in]."""
    return dict(zip((held.name for held in of.tensors), _NUMBERS[of.name].quantized(weight), strict=True))


def dequantized(of: Format, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] that tensors stand for: the same numbers in float32 and in bf16."""
    weight: torch.Tensor = _NUMBERS[of.name].dequantized(*tensors, dtype)
    return weight


def rounded(of: Format, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what a weight of a model's files becomes that is read in a precision and quantized."""
    return dequantized(of, list(quantized(of, weight.to(dtype)).values()), dtype)


def weight_of(layer: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight [out, in] of a linear layer of the trainer's or vLLM's: its own, or made of its codes."""
    of: Format | None = getattr(layer, "format", None)
    weight: torch.Tensor = layer.weight if of is None else dequantized(of, held_by(layer), dtype)
    return weight


def held_by(layer: Any) -> list[torch.Tensor]:
    """Return the tensors of a quantized layer's weight."""
    return [getattr(layer, held.name) for held in layer.format.tensors]


class QuantizedLinear(torch.nn.Linear):
    """A linear layer whose `weight` [out, in] becomes codes as soon as it is loaded. Biases stay as they are.

    Attributes:
        format: of the weight.
        compute_dtype: of its products. PEFT gives an adapter this dtype.
    """

    def __init__(self, replaced: torch.nn.Linear, of: Format) -> None:
        """Take the place of a layer on the meta device, which has no weights yet."""
        weight = replaced.weight
        bias = replaced.bias is not None
        super().__init__(replaced.in_features, replaced.out_features, bias, device=weight.device, dtype=weight.dtype)
        self.format, self.compute_dtype = of, weight.dtype
        for name, tensor in empty(of, replaced.out_features, replaced.in_features, weight.device):
            if name != "weight":  # which keeps its shape until it is loaded
                self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return x Wᵀ + c [..., out] for x [..., in]."""
        output: torch.Tensor = _FrozenProduct.apply(input, self.format, self.bias, *held_by(self))
        return output


class _FrozenProduct(torch.autograd.Function):
    """y = x Wᵀ + c and dX = dY W. The weight exists while a product is at work: only its codes are kept."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, of: Format, bias: torch.Tensor | None, *tensors: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        ctx.format = of
        return linear(x, dequantized(of, tensors, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        weight = dequantized(ctx.format, ctx.saved_tensors, gradient.dtype)
        return gradient @ weight, None, None, *(None for _ in ctx.saved_tensors)
