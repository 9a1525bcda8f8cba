"""Which mixtures of experts the trainer takes, judged by config.json.

Exactly what tests/trainer/test_experts.py compares is taken. Everything else is refused, before anything is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import FAMILIES

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What config.json calls the number of a layer's experts."""
_PLAIN: Mapping[str, object] = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0,
}
_NOT_COMPARED = "it was not compared with Transformers and vLLM"
_NO_BRIDGE = "Megatron-Bridge has no conversion for it"
_BESIDE = "PEFT 0.21 mistakes adapters on its dense or shared MLPs for expert adapters, and drops them"
_NOT_BY_EXPERT = "PEFT 0.21 reads no adapter on single experts of it"
_OWN_CODE = "it needs custom code from its repository, which lorarl does not run"
REASONS: Mapping[str, str] = {
    "gpt_oss": _NOT_BY_EXPERT,
    "glm4_moe": _BESIDE,
    "ernie4_5_moe": _BESIDE,
    "hy_v3": _NOT_BY_EXPERT,
    "exaone_moe": _BESIDE,
    "bailing_moe_v2": _OWN_CODE,
    "step3p5": _OWN_CODE,
    "sarvam_moe": _OWN_CODE,
    "mimo_v2_flash": _OWN_CODE,
    "minimax_m2": "its router's sigmoids and biases, and positions on a part of each head, were not compared",
    "deepseek_v4": "its compressed attention was not compared",
    "qwen2_moe": _NO_BRIDGE,
}
"""Why other mixtures are refused, by `model_type`, where config.json shows no other reason."""
TAKEN = ", ".join(family.models for family in FAMILIES.values() if family.experts)


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Return whether a model is of a family of mixtures that the trainer takes."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.experts is not None


def require_known_mixture(config: Mapping[str, Any]) -> None:
    """Refuse a mixture of experts of another family, or with other layers, given its config.json.

    Raises:
        InputError: it names what config.json asks for.
    """
    found = next((name for name in _COUNTS if config.get(name)), None)
    if found is None:
        return
    if not is_mixture(config):
        why = REASONS.get(str(config.get("model_type")), _NOT_COMPARED)
        raise InputError(
            "spec.model.uri",
            f"a config.json with {found} {config[found]}: a mixture of experts ({why})",
            f"a dense model, or a mixture of a tested family ({TAKEN})",
            "Choose a dense model, or one of these.",
        )
    for name, plain in _PLAIN.items():
        if (config.get(name) or plain) != plain:
            raise InputError(
                "spec.model.uri",
                f"a config.json with {name}: {config[name]}",
                f"{plain}: experts in every layer, and no others",
                "Choose another model.",
            )
