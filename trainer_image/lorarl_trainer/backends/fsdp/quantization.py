"""How Transformers reads files to a quantized base: one tensor at a time, through its own door for quantizers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.kernels.quantized_linear import QuantizedLinear, quantized, weight_of


def quantizing_options(of: Format | None) -> dict[str, Any]:
    """Return what Transformers' `from_pretrained` is called with for a base in a format."""
    return {} if of is None else {"quantization_config": _door(of)()}


def dequantize(model: Any) -> dict[str, Format]:
    """Let a model's linear layers be plain ones, with the numbers that their codes stand for.

    Returns:
        How each weight was held, by the name that it has without PEFT's adapters.
    """
    found = {}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, QuantizedLinear):
            plain = torch.nn.Linear(layer.in_features, layer.out_features, device="meta")
            weight = weight_of(layer, layer.compute_dtype)
            plain.weight, plain.bias = torch.nn.Parameter(weight, requires_grad=False), layer.bias
            model.set_submodule(name, plain)
            found[f"{name.removesuffix('.base_layer')}.weight"] = layer.format
    if found:
        model.hf_quantizer.remove_quantization_config(model)
    return found


@cache
def _door(of: Format) -> Any:
    """Tell Transformers of the quantizer to a format; return the class of its configuration."""
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    registered = f"lorarl-{of.name}"

    class Quantize(ConversionOps):
        def convert(
            self, input_dict: dict[str, Any], full_layer_name: str | None = None, **options: Any
        ) -> dict[str, torch.Tensor]:
            (weights,) = input_dict.values()
            tensors = quantized(of, weights[0] if isinstance(weights, list) else weights)
            layer = str(full_layer_name).rpartition(".")[0]
            return {f"{layer}.{name}": tensor for name, tensor in tensors.items()}

    @register_quantization_config(registered)
    class Configuration(QuantizationConfigMixin):
        def __init__(self) -> None:
            self.quant_method: Any = registered

    @register_quantizer(registered)
    class Quantizer(HfQuantizer):
        is_serializable, is_trainable = False, True

        def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
            head = model.get_output_embeddings()
            for name, layer in list(model.named_modules()):
                if isinstance(layer, torch.nn.Linear) and layer is not head:
                    model.set_submodule(name, QuantizedLinear(layer, of))

        def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
            layer, _, name = param_name.rpartition(".")
            return name == "weight" and isinstance(model.get_submodule(layer), QuantizedLinear)

        def get_quantize_ops(self) -> Any:
            return Quantize()

    return Configuration
