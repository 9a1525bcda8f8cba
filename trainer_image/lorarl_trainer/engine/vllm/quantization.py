"""The trainer's quantized base in vLLM, through vLLM's own door for quantizations, `register_quantization_config`.

vLLM's own quantizations have activations quantized too, or repack weights so that no trainer can read them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.nn.functional import linear

from lorarl_trainer.engine.vllm.names import BaseModel
from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.kernels.quantized_linear import empty, weight_of


def register(of: Format) -> str:
    """Let vLLM, which must have been set up, know a format; return the name that its engine is started with."""
    name = f"lorarl-{of.name}"
    BaseModel.register_quantization_config(name)(_configuration(of, name))
    return name


@cache
def quantized_method() -> type:
    """Return the class of the method by which a linear layer of vLLM's computes."""
    method: Any = BaseModel.LinearMethodBase

    class QuantizedMethod(method):
        """A layer's weight is made of its codes whenever it computes."""

        def __init__(self, of: Format) -> None:
            self._format = of

        def create_weights(
            self,
            layer: torch.nn.Module,
            input_size_per_partition: int,
            output_partition_sizes: list[int],
            *sizes: Any,
            **options: Any,
        ) -> None:
            layer.format = self._format
            for name, tensor in empty(self._format, sum(output_partition_sizes), input_size_per_partition):
                layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

        def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            return linear(x, weight_of(layer, x.dtype), bias)

    return QuantizedMethod


@cache
def _configuration(of: Format, name: str) -> type:
    base: Any = BaseModel.QuantizationConfig

    class Configuration(base):
        """All linear layers are quantized. Embeddings and output layer are none of vLLM's linear layers."""

        def get_name(self) -> str:
            return name

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
            return quantized_method()(of) if isinstance(layer, BaseModel.LinearBase) else None

    return Configuration
