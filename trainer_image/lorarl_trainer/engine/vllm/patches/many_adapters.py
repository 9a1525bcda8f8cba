"""The linear layers that vLLM generates with on a CPU where an engine has several adapters: one product for each.

vLLM's own layers for a CPU copy A and B for every token of a step: 2.5 GB for 4,096 tokens of a 0.5B model's
`down_proj` at rank 32. Here the tokens of an adapter are one product, as in `linear.py`, so each token's numbers are
those that it has with its adapter alone. On a GPU, vLLM's kernels for many adapters compute these layers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm.names import AdapterLayers
from lorarl_trainer.engine.vllm.patches.linear import add_adapter


@cache
def many_adapter_classes() -> tuple[type, ...]:
    """Return a class for each kind of linear layer of vLLM, which must have been set up."""
    kinds = (
        AdapterLayers.ColumnParallelLinearWithLoRA,
        AdapterLayers.MergedColumnParallelLinearWithLoRA,
        AdapterLayers.QKVParallelLinearWithLoRA,
        AdapterLayers.MergedQKVParallelLinearWithLoRA,
        AdapterLayers.RowParallelLinearWithLoRA,
        AdapterLayers.ReplicatedLinearWithLoRA,
    )
    return tuple(type(f"ManyAdapters{kind.__name__}", (_ManyAdapters, kind), {}) for kind in kinds)


class _ManyAdapters:
    """The methods that replace vLLM's. Its tensors are [slots, 1, rank, in] and [slots, 1, out, rank] per slice."""

    base_layer: Any
    lora_a_stacked: tuple[torch.Tensor, ...]
    lora_b_stacked: tuple[torch.Tensor, ...]
    punica_wrapper: Any
    _get_quant_method: Any

    @classmethod
    def can_replace_layer(cls, **arguments: Any) -> bool:
        method = getattr(arguments["source_layer"], "quant_method", None)
        plain = isinstance(method, AdapterLayers.UnquantizedLinearMethod)
        return plain and arguments["lora_config"].max_loras > 1 and super().can_replace_layer(**arguments)  # type: ignore[misc]

    def apply(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Return y [tokens, out] for x [tokens, in]. Models of Transformers' own have a batch of one around both."""
        if x.dim() > 2:
            return self.apply(x.flatten(0, -2), bias).unflatten(0, x.shape[:-1])
        output: torch.Tensor = self._get_quant_method().apply(self.base_layer, x, bias)
        slot_of_token = self.punica_wrapper.token_lora_indices
        for slot in slot_of_token.unique().tolist():
            if slot >= 0:
                rows = (slot_of_token == slot).nonzero().flatten()
                output[rows] = self._with_adapter(slot, output[rows], x[rows])
        return output

    def _with_adapter(self, slot: int, output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return output + (x Aᵀ) Bᵀ, [tokens, out], of one adapter. Each slice of the output has an A and a B."""
        parts = output.split([b.shape[2] for b in self.lora_b_stacked], dim=1)
        adapters = zip(parts, self.lora_a_stacked, self.lora_b_stacked, strict=True)
        return torch.cat([add_adapter(part, x, a[slot, 0], b[slot, 0]) for part, a, b in adapters], dim=1)
