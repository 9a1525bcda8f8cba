"""LFM2: short convolutions in most layers, which see a few tokens each, and attention in the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import FsdpFamily, norms
from lorarl_trainer.models.layer_kinds import kinds_of
from lorarl_trainer.models.refused_families import refused

_ANOTHER = "Choose another model."


def _words(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the inner size of the MLPs: by default, two thirds of what config.json says, rounded up."""
    inner: int = config["intermediate_size"]
    if config["block_auto_adjust_ff_dim"]:
        inner = int(config["block_ffn_dim_multiplier"] * int(2 * inner / 3))
        inner = -(-inner // config["block_multiple_of"]) * config["block_multiple_of"]
    return {"i": inner}


def _requires(config: Mapping[str, Any]) -> None:
    """Refuse what vLLM 0.26 reads elsewhere than Transformers, or has no place for."""
    if not {"hidden_size", "num_attention_heads", "num_hidden_layers"} <= config.keys():
        return  # `model_sizes` refuses it
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    for name, size in (("block_dim", hidden), ("conv_dim", hidden), ("head_dim", hidden // heads)):
        if (found := config.get(name, size)) != size:
            raise refused(f"{name} {found}", f"{size}, as Transformers and vLLM both compute it", _ANOTHER)
    if config["block_auto_adjust_ff_dim"] and not config["block_ffn_dim_multiplier"]:
        raise refused("block_ffn_dim_multiplier: null", "a number, without which vLLM rounds otherwise", _ANOTHER)
    kinds = kinds_of(config)
    if not 0 < (attention := kinds.count("full_attention")) <= len(kinds) - attention:
        raise refused(
            f"{attention} layers with attention of {len(kinds)}",
            "one or more, and no more than convolutions: lorarl keeps their keys and values as one group",
            _ANOTHER,
        )


def sizes_for_vllm(config: Any) -> dict[str, int]:
    """Return what vLLM 0.26 wants in such a model's configuration of Transformers, which writes no such names."""
    return {"block_dim": config.hidden_size, "conv_dim": config.hidden_size} if config.model_type == "lfm2" else {}


LFM_2 = FsdpFamily(
    "LFM2, LFM2.5, dense (350M to 2.6B)",
    "Lfm2ForCausalLM",
    "short convolutions in most layers, attention with norms of q and k in the others",
    {
        "self_attn.q_proj.weight": "q h",
        "self_attn.k_proj.weight": "k h",
        "self_attn.v_proj.weight": "k h",
        "self_attn.out_proj.weight": "h q",
        "self_attn.q_layernorm.weight": "d",
        "self_attn.k_layernorm.weight": "d",
        "feed_forward.w1.weight": "i h",
        "feed_forward.w3.weight": "i h",
        "feed_forward.w2.weight": "h i",
        **norms("operator_norm", "ffn_norm"),
    },
    {"model.embed_tokens.weight": "v h", "model.embedding_norm.weight": "h"},
    kinds=("conv",),
    usual={"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
    defaults={
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
    },
    only={"conv_bias": False, "tie_word_embeddings": True},
    requires=_requires,
    words=_words,
)
