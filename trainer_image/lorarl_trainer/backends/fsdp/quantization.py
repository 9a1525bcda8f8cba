"""How Transformers reads a model's files to an FP8 base: one tensor at a time, through its own door for quantizers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lorarl_api.v1alpha1 import Quantization
from lorarl_trainer.kernels.fp8 import SCALE, Fp8Linear, dequantized, quantized

_NAME = "lorarl-fp8"


def quantizing_options(quantization: Quantization) -> dict[str, Any]:
    """Return what Transformers' `from_pretrained` is called with for `model.quantization`."""
    return {} if quantization == "none" else {"quantization_config": _door()()}


def dequantize(model: Any) -> set[str]:
    """Let a model's linear layers be plain ones, with the numbers that their codes stand for; return their weights.

    `model`: of Transformers', with PEFT's adapters or without. The names are those that it has without.
    """
    found = set()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Fp8Linear):
            plain = torch.nn.Linear(layer.in_features, layer.out_features, device="meta")
            weight = dequantized(layer.weight, layer.weight_scale, layer.compute_dtype)
            plain.weight, plain.bias = torch.nn.Parameter(weight, requires_grad=False), layer.bias
            model.set_submodule(name, plain)
            found.add(f"{name.removesuffix('.base_layer')}.weight")
    if found:
        model.hf_quantizer.remove_quantization_config(model)
    return found


@cache
def _door() -> Any:
    """Tell Transformers of the quantizer; return the class of its configuration."""
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    class Quantize(ConversionOps):
        def convert(
            self, input_dict: dict[str, Any], full_layer_name: str | None = None, **options: Any
        ) -> dict[str, torch.Tensor]:
            (weights,) = input_dict.values()
            codes, scale = quantized(weights[0] if isinstance(weights, list) else weights)
            name = str(full_layer_name)
            return {name: codes, f"{name.rpartition('.')[0]}.{SCALE}": scale}

    @register_quantization_config(_NAME)
    class Configuration(QuantizationConfigMixin):
        def __init__(self) -> None:
            self.quant_method: Any = _NAME

    @register_quantizer(_NAME)
    class Quantizer(HfQuantizer):
        is_serializable, is_trainable = False, True

        def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
            head = model.get_output_embeddings()
            for name, layer in list(model.named_modules()):
                if isinstance(layer, torch.nn.Linear) and layer is not head:
                    model.set_submodule(name, Fp8Linear(layer))

        def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
            layer, _, name = param_name.rpartition(".")
            return name == "weight" and isinstance(model.get_submodule(layer), Fp8Linear)

        def get_quantize_ops(self) -> Any:
            return Quantize()

    return Configuration
