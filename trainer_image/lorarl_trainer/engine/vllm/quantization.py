"""The trainer's FP8 base in vLLM, through vLLM's own door for quantizations, `register_quantization_config`.

vLLM's own FP8 quantizes activations too, or repacks weights so that no trainer can read them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm.names import BaseModel
from lorarl_trainer.kernels.fp8 import CODES, SCALE, weight_of

_NAME = "lorarl-fp8"


def register() -> str:
    """Let vLLM, which must have been set up, know the quantization; return the name that its engine is started with."""
    BaseModel.register_quantization_config(_NAME)(_configuration())
    return _NAME


@cache
def fp8_method() -> type:
    """Return the class of the method by which a linear layer of vLLM's computes."""
    method: Any = BaseModel.LinearMethodBase

    class Fp8Method(method):
        """A layer's weight is made of its codes whenever it computes."""

        def create_weights(
            self,
            layer: torch.nn.Module,
            input_size_per_partition: int,
            output_partition_sizes: list[int],
            *sizes: Any,
            **options: Any,
        ) -> None:
            outputs = sum(output_partition_sizes)
            for name, tensor in (
                ("weight", torch.empty(outputs, input_size_per_partition, dtype=CODES)),
                (SCALE, torch.empty(outputs, dtype=torch.float32)),
            ):
                layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

        def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return linear(x, weight_of(layer, x.dtype), bias)

    return Fp8Method


@cache
def _configuration() -> type:
    base: Any = BaseModel.QuantizationConfig

    class Fp8Configuration(base):
        """All linear layers are quantized. Embeddings and output layer are none of vLLM's linear layers."""

        def get_name(self) -> str:
            return _NAME

        def get_supported_act_dtypes(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float32]

        @classmethod
        def get_min_capability(cls) -> int:
            return 80

        @staticmethod
        def get_config_filenames() -> list[str]:
            return []

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            return cls()

        def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
            return fp8_method()() if isinstance(layer, BaseModel.LinearBase) else None

    return Fp8Configuration
