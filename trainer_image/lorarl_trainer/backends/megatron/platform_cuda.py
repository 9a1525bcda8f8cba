"""Megatron on a GPU, with Transformer Engine's layers."""

from __future__ import annotations

from typing import Any

from torch.nn.functional import silu


class CudaPlatform:
    """See `platform.Platform`."""

    def prepare(self) -> None:
        """See `Platform.prepare`. Megatron is made for GPUs."""

    def configure_provider(self, provider: Any) -> None:
        # It needs an extension of Apex, and adapters are too small to gain from it.
        provider.gradient_accumulation_fusion = False
        provider.bias_dropout_fusion = provider.apply_rope_fusion = True
        # Megatron has a kernel for this activation; it refuses to fuse others.
        provider.bias_activation_fusion = provider.gated_linear_unit and provider.activation_func is silu
        # One kernel splits q, k and v and turns q and k. It cannot where a norm stands between. Nor can it where ranks
        # share a key-value group: Megatron would leave each of them the whole group's queries.
        own_groups = (
            provider.num_query_groups is None or provider.num_query_groups >= provider.tensor_model_parallel_size
        )
        plain = provider.position_embedding_type == "rope" and not provider.qk_layernorm
        provider.fused_single_qkv_rope = plain and own_groups
        # `fused_experts` computes all experts at once, on weights that Megatron keeps apart.
        provider.moe_grouped_gemm = provider.moe_permute_fusion = False
        provider.moe_token_dispatcher_type = "allgather"

    def attention_mask(self, length: int) -> None:
        """See `Platform.attention_mask`. Transformer Engine's attention is causal by itself."""
