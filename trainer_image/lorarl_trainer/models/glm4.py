"""GLM-4.5 to 4.7: dense MLPs in the first layers, and mixtures with a shared expert in the others.

Attention alone gets adapters. PEFT 0.21 takes names of MLPs for those of experts in these families, and drops them.

GLM-4.7-Flash has latent attention: a token's keys and values of all heads are made of one short vector (DeepSeek-AI,
"DeepSeek-V2", arXiv:2405.04434). Both sides make them. By itself, vLLM would keep the vector alone, and multiply
weights for that without their adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import (
    ATTENTION,
    BIASED_QKV,
    GATED,
    HEAD_NORMS,
    USUAL_NORMS,
    FsdpFamily,
    Uneven,
)
from lorarl_trainer.models.refused_families import refused
from lorarl_trainer.models.rotary import rope_type
from lorarl_trainer.models.shape import FrozenExperts

_DENSE, _SPARSE = "dense", "sparse"
_LATENT = {
    "self_attn.q_a_proj.weight": "qa h",
    "self_attn.q_a_layernorm.weight": "qa",
    "self_attn.q_b_proj.weight": "q qa",
    "self_attn.kv_a_proj_with_mqa.weight": "kva+rope h",
    "self_attn.kv_a_layernorm.weight": "kva",
    "self_attn.kv_b_proj.weight": "nope+values kva",
    "self_attn.o_proj.weight": "h values",
}
_MIXTURE = {
    "mlp.gate.weight": "n h",
    "mlp.gate.e_score_correction_bias": "n",
    "mlp.experts.gate_up_proj": "n e+e h",
    "mlp.experts.down_proj": "n h e",
    **{name.replace("mlp.", "mlp.shared_experts."): sizes.replace("f", "s") for name, sizes in GATED.items()},
}


def _kinds(config: Mapping[str, Any]) -> list[str]:
    layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    return [_DENSE if number < dense else _SPARSE for number in range(layers)]


def _words(config: Mapping[str, Any]) -> dict[str, int]:
    inner = config["moe_intermediate_size"]
    return {"n": config["n_routed_experts"], "e": inner, "s": inner * config["n_shared_experts"]}


def _words_of_lite(config: Mapping[str, Any]) -> dict[str, int]:
    heads = config["num_attention_heads"]
    return {
        **_words(config),
        "qa": config["q_lora_rank"],
        "kva": config["kv_lora_rank"],
        "rope": config["qk_rope_head_dim"],
        "nope": heads * config["qk_nope_head_dim"],
        "values": heads * config["v_head_dim"],
    }


def _experts(config: Mapping[str, Any]) -> FrozenExperts:
    inner, dense = config["moe_intermediate_size"], config["first_k_dense_replace"]
    count, active = config["n_routed_experts"], config["num_experts_per_tok"]
    return FrozenExperts(count, active, inner, shared=inner * config["n_shared_experts"], dense=dense)


def _no_widths(_: Mapping[str, Any]) -> tuple[int, ...]:
    return ()


def _require_plain_positions(config: Mapping[str, Any]) -> None:
    if (scaled := rope_type(config)) != "default":
        raise refused(f"rope_type {scaled}", "positions as they are", "Choose another model.")


def _require_lite(config: Mapping[str, Any]) -> None:
    """Refuse layers of other kinds, heads of two widths and scaled positions. Raises InputError."""
    _require_plain_positions(config)
    dense, layers = config["first_k_dense_replace"], config.get("num_hidden_layers", 0)
    wanted = _kinds({**config, "num_hidden_layers": layers})
    # By itself, Transformers has a dense MLP in the first layer alone, and vLLM reads its number.
    found = config.get("mlp_layer_types") or [_DENSE, *[_SPARSE] * (layers - 1)][:layers]
    if found != wanted:
        raise refused(
            f"first_k_dense_replace {dense} and mlp_layer_types {found}", "the same of both", "Choose another model."
        )
    if (values := config["v_head_dim"]) != config["head_dim"]:
        raise refused(
            f"v_head_dim {values}", f"{config['head_dim']}, as wide as keys (qk_head_dim)", "Choose another model."
        )


def _family(
    models: str, architecture: str, features: str, attention: Mapping[str, str], words: Any, **more: Any
) -> FsdpFamily:
    layers = {kind: {**attention, **mlp, **USUAL_NORMS} for kind, mlp in ((_DENSE, GATED), (_SPARSE, _MIXTURE))}
    only = {"hidden_act": "silu", "n_group": 1, "norm_topk_prob": True, "topk_group": 1}
    return FsdpFamily(
        models,
        architecture,
        f"{features}, and experts that stay as they are beside a shared one",
        layers[_SPARSE],
        uneven=Uneven(_kinds, layers, words, _no_widths, ()),
        tied=False,
        only={**only, **more.pop("only", {})},
        frozen_experts=_experts,
        adapted="self_attn.",
        **more,
    )


GLM_4 = {
    "glm4_moe": _family(
        "GLM-4.5, 4.6 and 4.7, with experts",
        "Glm4MoeForCausalLM",
        "positions on a part of each head, biases and norms of q and k in some",
        ATTENTION,
        _words,
        if_set={"attention_bias": BIASED_QKV, "use_qk_norm": HEAD_NORMS},
        defaults={
            "first_k_dense_replace": 1,
            "hidden_size": 4096,
            "intermediate_size": 10_944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_key_value_heads": 8,
            "vocab_size": 151_552,
        },
        requires=_require_plain_positions,
    ),
    "glm4_moe_lite": _family(
        "GLM-4.7-Flash",
        "Glm4MoeLiteForCausalLM",
        "latent attention",
        _LATENT,
        _words_of_lite,
        defaults={
            "first_k_dense_replace": 1,
            "hidden_size": 2048,
            "intermediate_size": 10_240,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 1536,
            "n_routed_experts": 64,
            "n_shared_experts": 1,
            "num_attention_heads": 20,
            "num_experts_per_tok": 4,
            "q_lora_rank": 768,
            "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64,
            "v_head_dim": 256,
            "vocab_size": 154_880,
        },
        only={"attention_bias": False, "rope_interleave": True},
        requires=_require_lite,
        latent=True,
    ),
}
