"""Qwen3.5: gated delta nets in most layers, and an MLP in each, or a mixture with a shared expert beside the others.

The experts of a layer are one tensor, and stay as they are. The shared expert has its own layers, with adapters. The
gate of its output never gets one: vLLM 0.26 reads such an adapter, and computes without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import ATTENTION, GATED, HEAD_NORMS, USUAL_NORMS, FsdpFamily
from lorarl_trainer.models.shape import FrozenExperts

_DECODER = "model.language_model"
_GATED_ATTENTION = {**ATTENTION, **HEAD_NORMS, "self_attn.q_proj.weight": "q+q h"}
_MIXTURE = {
    "mlp.gate.weight": "n h",
    "mlp.experts.gate_up_proj": "n e+e h",
    "mlp.experts.down_proj": "n h e",
    **{name.replace("mlp.", "mlp.shared_expert."): sizes for name, sizes in GATED.items()},
    "mlp.shared_expert_gate.weight": "one h",
}


def _words(config: Mapping[str, Any]) -> dict[str, int]:
    return {"n": config["num_experts"], "e": config["moe_intermediate_size"], "one": 1}


def _experts(config: Mapping[str, Any]) -> FrozenExperts:
    count, active, inner = config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"]
    return FrozenExperts(count, active, inner, shared=config["shared_expert_intermediate_size"])


def _family(
    models: str, architecture: str, mlp: Mapping[str, str], features: str, sizes: Mapping[str, int], **more: Any
) -> FsdpFamily:
    return FsdpFamily(
        models,
        architecture,
        f"gated delta nets in most layers, gated attention in the others, {features}",
        {**_GATED_ATTENTION, **mlp, **USUAL_NORMS},
        {f"{_DECODER}.embed_tokens.weight": "v h", f"{_DECODER}.norm.weight": "h"},
        layers=f"{_DECODER}.layers",
        kinds=("linear_attention",),
        tied=False,
        defaults={
            "full_attention_interval": 4,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            **sizes,
        },
        sees=True,
        only={"attention_bias": False, "hidden_act": "silu", "norm_topk_prob": True},
        **more,
    )


QWEN_3_5 = {
    "qwen3_5": _family(
        "Qwen3.5, 3.6 and 3.8, dense (0.8B to 27B), on text",
        "Qwen3_5ForConditionalGeneration",
        GATED,
        "in a model that also takes images",
        {"num_key_value_heads": 4},
    ),
    "qwen3_5_moe": _family(
        "Qwen3.5 and 3.6 with experts (35B-A3B and larger), on text",
        "Qwen3_5MoeForConditionalGeneration",
        _MIXTURE,
        "experts that stay as they are beside a shared one, in a model that also takes images",
        {
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
        },
        usual={"intermediate_size": "shared_expert_intermediate_size"},
        words=_words,
        frozen_experts=_experts,
    ),
}
