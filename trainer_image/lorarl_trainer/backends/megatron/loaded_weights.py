"""Checks that the model's files had a value for each of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lorarl_trainer.backends.megatron.bridge_lora import hf_parts
from lorarl_trainer.backends.megatron.local_experts import LocalExperts
from lorarl_trainer.errors import InputError


def require_all_weights(model: torch.nn.Module, bridge: Any, model_path: Path, experts: LocalExperts) -> None:
    """Refuse a model whose files lack some of its weights, once Megatron-Bridge has loaded them.

    The bridge logs what it does not find, and leaves what happens to be in memory there. An engine that shares the
    trainer's base computes with the same, so nothing else would notice.

    Raises:
        InputError: naming the first weight that is missing.
    """
    registry, there = bridge._model_bridge.mapping_registry(), set(bridge.hf_pretrained.state.source.get_all_keys())
    missing = []
    for name, _ in model.named_parameters():
        mapping = registry.megatron_to_hf_lookup(experts.in_model(name))
        if mapping is None or mapping.allow_hf_name_mismatch:
            continue
        missing += [part for part in hf_parts(mapping).values() if part not in there]
    if missing:
        raise InputError(
            "spec.model.uri",
            f"{model_path}, whose files lack {missing[0]} ({len(missing)} such weights)",
            "files with all weights of the model that config.json describes",
            "Copy or download the model again. Its config.json may be that of another model.",
        )
