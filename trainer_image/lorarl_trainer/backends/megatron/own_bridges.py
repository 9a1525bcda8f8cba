"""Conversions that Megatron-Bridge 0.6.2 lacks: Mixtral's, and that of OLMoE's experts where they are kept apart."""

from __future__ import annotations

from functools import cache
from typing import Any

_LAYER, _THERE = "decoder.layers.*", "model.layers.*"
_EXPERT = f"{_LAYER}.mlp.experts.local_experts.*"


@cache
def register_own_bridges() -> None:
    """Let Megatron-Bridge, which has been imported, load these families."""
    _register_olmoe()
    _register_mixtral()


def _register_olmoe() -> None:
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
    from megatron.bridge.models.conversion.param_mapping import AutoMapping, GatedMLPMapping
    from megatron.bridge.models.olmoe.olmoe_bridge import OlMoEBridge
    from megatron.core.models.gpt.gpt_model import GPTModel
    from transformers import OlmoeForCausalLM

    theirs: Any = OlMoEBridge
    experts = f"{_THERE}.mlp.experts.*"

    @MegatronModelBridge.register_bridge(source=OlmoeForCausalLM, target=GPTModel, model_type="olmoe")
    class OlmoeBridge(theirs):
        """Each expert has its own layers, as `fused_experts` takes them."""

        def mapping_registry(self) -> Any:
            gate, up, down = (f"{experts}.{part}_proj.weight" for part in ("gate", "up", "down"))
            return MegatronMappingRegistry(
                *super().mapping_registry(),
                GatedMLPMapping(megatron_param=f"{_EXPERT}.linear_fc1.weight", gate=gate, up=up),
                AutoMapping(megatron_param=f"{_EXPERT}.linear_fc2.weight", hf_param=down),
            )


def _register_mixtral() -> None:
    import torch
    from megatron.bridge.models.conversion.mapping_registry import MegatronMappingRegistry
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
    from megatron.bridge.models.conversion.param_mapping import AutoMapping, GatedMLPMapping, QKVMapping
    from megatron.core.models.gpt.gpt_model import GPTModel
    from transformers import MixtralForCausalLM

    attention, experts = f"{_THERE}.self_attn", f"{_THERE}.block_sparse_moe.experts.*"
    of_adapters = {"adapter_gate": ".w1.weight", "adapter_up": ".w3.weight"}
    alike = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "output_layer.weight": "lm_head.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
        f"{_LAYER}.self_attention.linear_qkv.layer_norm_weight": f"{_THERE}.input_layernorm.weight",
        f"{_LAYER}.self_attention.linear_proj.weight": f"{attention}.o_proj.weight",
        f"{_LAYER}.pre_mlp_layernorm.weight": f"{_THERE}.post_attention_layernorm.weight",
        f"{_LAYER}.mlp.router.weight": f"{_THERE}.block_sparse_moe.gate.weight",
        f"{_EXPERT}.linear_fc2.weight": f"{experts}.w2.weight",
    }

    @MegatronModelBridge.register_bridge(source=MixtralForCausalLM, target=GPTModel, model_type="mixtral")
    class MixtralBridge(MegatronModelBridge):
        """Llama's attention, and a mixture in each layer. The bridge's own class reads the sizes."""

        def provider_bridge(self, hf_pretrained: Any) -> Any:
            provider = super().provider_bridge(hf_pretrained)
            provider.normalization, provider.gated_linear_unit = "RMSNorm", True
            provider.add_bias_linear = provider.add_qkv_bias = provider.qk_layernorm = False
            provider.autocast_dtype = torch.bfloat16
            provider.moe_ffn_hidden_size = hf_pretrained.config.intermediate_size
            # The weights of a token's experts are shares of the softmax over these.
            provider.moe_router_pre_softmax = False
            return provider

        def mapping_registry(self) -> Any:
            qkv = {part: f"{attention}.{part}_proj.weight" for part in "qkv"}
            gate, up = f"{experts}.w1.weight", f"{experts}.w3.weight"
            return MegatronMappingRegistry(
                *(AutoMapping(megatron_param=ours, hf_param=theirs) for ours, theirs in alike.items()),
                QKVMapping(megatron_param=f"{_LAYER}.self_attention.linear_qkv.weight", **qkv),
                GatedMLPMapping(megatron_param=f"{_EXPERT}.linear_fc1.weight", gate=gate, up=up),
            )

        def _get_base_hf_param_names_for_adapter(
            self, mapping_registry: Any, global_base_prefix: str, adapter_key: str | None, base_suffix: str
        ) -> list[str]:
            """Return the names of what an adapter changes. The bridge knows gate and up by Llama's names alone."""
            names: list[str] = super()._get_base_hf_param_names_for_adapter(
                mapping_registry, global_base_prefix, adapter_key, base_suffix
            )
            own = of_adapters.get(adapter_key or "")
            return [name for name in names if own is None or name.endswith(own)]
