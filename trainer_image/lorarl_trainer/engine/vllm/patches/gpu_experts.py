"""The experts of a mixture that vLLM generates with on a GPU: one adapter for every token, in grouped products.

vLLM's own kernels serve many adapters at a time, and give each expert's adapter the rank of the largest one. Here the
buffers have the rank of the experts' adapter, and the products are those of the trainer (`lora.grouped_experts`), so
both round alike. A step of generation has few tokens, for which `kernels.triton_experts` reads the weights once. vLLM's
own code routes the tokens. CUDA graphs hold all of it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm.names import GpuExperts
from lorarl_trainer.engine.vllm.patches.expert_buffers import expert_buffers
from lorarl_trainer.lora.experts import padded_rank
from lorarl_trainer.lora.grouped_experts import Adapter, compute_mixture


@cache
def one_adapter_method() -> type:
    """Return what computes a layer's experts in the place of vLLM's method. vLLM must have been set up."""
    from lorarl_trainer.kernels import triton_experts  # needs Triton, which a CPU has no use for

    base: Any = GpuExperts.FusedMoEMethodBase

    class OneAdapterMethod(base, torch.nn.Module):
        def __init__(self, replaced: Any) -> None:
            super().__init__(replaced.moe)
            self.moe_quant_config = replaced.moe_quant_config
            self.adapters: tuple[Adapter | None, Adapter | None] = (None, None)

        def create_weights(self, *arguments: Any, **options: Any) -> None:
            raise NotImplementedError("vLLM's own method has made the weights")

        def get_fused_moe_quant_config(self, layer: Any) -> Any:
            return self.moe_quant_config

        def apply(
            self, layer: Any, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *_: Any, **__: Any
        ) -> torch.Tensor:
            weights, (gate_up, down) = (layer.w13_weight, layer.w2_weight), self.adapters
            if gate_up and down and triton_experts.are_few(topk_ids.numel(), len(layer.w2_weight)):
                each = (weights[0], *gate_up[:2]), (weights[1], *down[:2])  # B includes the scale
                return triton_experts.mix_few(x, topk_weights, topk_ids, *each)
            return compute_mixture(x, topk_weights, topk_ids, *weights, self.adapters)

    return OneAdapterMethod


@cache
def one_adapter_experts(rank: int) -> type:
    """Return the layer that holds the experts' adapter of a rank. vLLM must have been set up."""
    base: Any = expert_buffers()

    class OneAdapterExperts(base):
        """Buffers of which vLLM's are views: A of gate stands above A of up, and their B's along a diagonal."""

        def __init__(self, base_layer: Any) -> None:
            super().__init__(base_layer)
            self.method = one_adapter_method()(base_layer._quant_method)
            base_layer._replace_quant_method(self.method)
            # vLLM's warm-up has an adapter of rank 8.
            self._rank = padded_rank(rank)

        def create_lora_weights(self, *arguments: Any, **options: Any) -> None:
            super().create_lora_weights(*arguments, **options)
            self.method.adapters = (Adapter(self._gate_up_a, self._gate_up_b), Adapter(self._down_a, self._down_b))

        def _create_lora_a_weights(self, max_loras: int, lora_config: Any) -> None:
            self._gate_up_a = self._zeros(lora_config, 2 * self._rank, self.hidden_size)
            self._down_a = self._zeros(lora_config, self._rank, self.intermediate_size_per_partition)
            self.w13_lora_a_stacked = tuple(part[None] for part in self._gate_up_a.chunk(2, dim=1))
            self.w2_lora_a_stacked = (self._down_a[None],)

        def _create_lora_b_weights(self, max_loras: int, lora_config: Any) -> None:
            inner = self.intermediate_size_per_partition
            self._gate_up_b = self._zeros(lora_config, 2 * inner, 2 * self._rank)
            self._down_b = self._zeros(lora_config, self.hidden_size, self._rank)
            gate, up = self._gate_up_b[:, :inner, : self._rank], self._gate_up_b[:, inner:, self._rank :]
            self.w13_lora_b_stacked = (gate[None], up[None])
            self.w2_lora_b_stacked = (self._down_b[None],)

        def _zeros(self, lora_config: Any, *shape: int) -> torch.Tensor:
            return torch.zeros(self.local_num_experts, *shape, dtype=lora_config.lora_dtype, device=self.device)

        @classmethod
        def can_replace_layer(cls, **arguments: Any) -> bool:
            experts = getattr(arguments["source_layer"], "routed_experts", None)
            plain = isinstance(getattr(experts, "quant_method", None), GpuExperts.UnquantizedFusedMoEMethod)
            return plain and super().can_replace_layer(**arguments)

    OneAdapterExperts.__name__ = base.__name__
    return OneAdapterExperts
