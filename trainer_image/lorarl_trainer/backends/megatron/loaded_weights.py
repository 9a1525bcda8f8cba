"""The weights that a model needs of its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lorarl_trainer.backends.megatron.bridge_lora import hf_parts
from lorarl_trainer.backends.megatron.local_experts import LocalExperts
from lorarl_trainer.errors import InputError


def needed_weights(model: torch.nn.Module, bridge: Any, experts: LocalExperts) -> dict[str, bool]:
    """Return the Hugging Face names of this rank's weights, in the order in which Megatron-Bridge loads them.

    The value is whether the files must have it by this very name.
    """
    from megatron.bridge.models.conversion.utils import extract_sort_key

    registry = bridge._model_bridge.mapping_registry()
    names: dict[str, bool] = {}
    for name in sorted((experts.in_model(name) for name, _ in model.named_parameters()), key=extract_sort_key):
        mapping = registry.megatron_to_hf_lookup(name)
        if mapping is not None:
            names.update(dict.fromkeys(hf_parts(mapping).values(), not mapping.allow_hf_name_mismatch))
    return names


def require_all_weights(needed: Mapping[str, bool], bridge: Any, model_path: Path) -> None:
    """Refuse a model whose files lack some of its weights.

    The bridge logs what it does not find, and leaves what happens to be in memory there. An engine that shares the
    trainer's base computes with the same, so nothing else would notice.

    Raises:
        InputError: naming the first weight that is missing.
    """
    there = set(bridge.hf_pretrained.state.source.get_all_keys())
    missing = [name for name, required in needed.items() if required and name not in there]
    if missing:
        raise InputError(
            "spec.model.uri",
            f"{model_path}, whose files lack {missing[0]} ({len(missing)} such weights)",
            "files with all weights of the model that config.json describes",
            "Copy or download the model again. Its config.json may be that of another model.",
        )
