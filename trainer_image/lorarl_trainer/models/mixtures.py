"""Which mixtures of experts the trainer takes, judged by config.json.

Exactly what tests/trainer/test_experts.py compares is taken. Everything else is refused, before anything is downloaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import FAMILIES
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""What config.json calls the number of a layer's experts."""
_PLAIN: Mapping[str, object] = {
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0,
}
TAKEN = ", ".join(family.models for family in FAMILIES.values() if family.experts)


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Return whether a model is of a family of mixtures that the trainer takes."""
    family = FAMILIES.get(str(config.get("model_type")))
    return family is not None and family.experts is not None


def has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether a model of any family is a mixture of experts, given its config.json."""
    parts = (config, config.get("text_config") or {})
    return any(part.get(name) for part in parts for name in _COUNTS)


def require_known_mixture(config: Mapping[str, Any]) -> None:
    """Refuse a mixture of experts of another family, or with other layers, given its config.json.

    Raises:
        InputError: it names what config.json asks for.
    """
    found = next((name for name in _COUNTS if config.get(name)), None)
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    if found is None or (family is not None and family.frozen_experts):
        return
    if not is_mixture(config):
        raise InputError(
            "spec.model.uri",
            f"a config.json with {found} {config[found]}: a mixture of experts, which was not compared",
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
