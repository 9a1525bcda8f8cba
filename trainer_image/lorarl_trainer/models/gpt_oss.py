"""gpt-oss: attention with a sink for each head, windows in every second layer, and experts whose weights stay frozen.

`all-linear` means what it means for PEFT: the linear layers of attention. The weights of a layer's experts are one
tensor for all of them, which is no linear layer, and vLLM 0.26 takes no adapter on experts on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import ATTENTION, USUAL_NORMS, FsdpFamily, biased
from lorarl_trainer.models.packed_weights import MXFP4
from lorarl_trainer.models.refused_families import refused
from lorarl_trainer.models.rotary import rope_of, rope_type
from lorarl_trainer.models.shape import FrozenExperts

_KINDS = ("sliding_attention", "full_attention")
_ACTIVE = "num_experts_per_tok"
_MUST_SAY = frozenset({"factor", "original_max_position_embeddings", "beta_fast", "beta_slow"})
_MAY_SAY = _MUST_SAY | {"rope_type", "type", "rope_theta", "truncate"}


def _words(config: Mapping[str, Any]) -> dict[str, int]:
    return {"a": config["num_attention_heads"], "n": config["num_local_experts"]}


def _experts(config: Mapping[str, Any]) -> FrozenExperts:
    return FrozenExperts(config["num_local_experts"], config[_ACTIVE], config["intermediate_size"], kept=6)


def _require_as_vllm(config: Mapping[str, Any]) -> None:
    """Refuse windows in other layers, and positions scaled in another way, than vLLM 0.26 has them in this family.

    It takes neither from config.json. Raises InputError.
    """
    count = config.get("num_hidden_layers", 0)
    if (found := list(config.get("layer_types") or _KINDS * count)[:count]) != [*_KINDS * count][:count]:
        raise refused(
            f"layer_types {found}",
            "sliding_attention and full_attention in turn, all that vLLM has in this family",
            "Choose another model.",
        )
    rope = rope_of(config)
    if rope and (rope_type(config) != "yarn" or rope.keys() - _MAY_SAY or _MUST_SAY - rope.keys()):
        raise refused(
            f"rope_parameters {json.dumps(dict(rope))}",
            f"rope_type yarn with {', '.join(sorted(_MUST_SAY))}, and nothing but truncate and rope_theta beside them: "
            "vLLM reads these alone in this family",
            "Choose another model.",
        )


GPT_OSS = FsdpFamily(
    "gpt-oss",
    "GptOssForCausalLM",
    "sinks, windows, biases, positions scaled by yarn, and experts that stay as they are",
    {
        **biased(ATTENTION),
        "self_attn.sinks": "a",
        "mlp.router.weight": "n h",
        "mlp.router.bias": "n",
        "mlp.experts.gate_up_proj": "n h f+f",
        "mlp.experts.gate_up_proj_bias": "n f+f",
        "mlp.experts.down_proj": "n f h",
        "mlp.experts.down_proj_bias": "n h",
        **USUAL_NORMS,
    },
    tied=False,
    defaults={
        "head_dim": 64,
        "intermediate_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
        _ACTIVE: 4,
        "sliding_window": 128,
        "vocab_size": 201_088,
    },
    only={
        "attention_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
    },
    words=_words,
    frozen_experts=_experts,
    quantized=MXFP4,
    requires=_require_as_vllm,
)
