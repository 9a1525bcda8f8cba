"""The frozen base in Hugging Face names, with the layers fused that vLLM fuses."""

from __future__ import annotations

import torch

from lorarl_trainer.lora.tensor_names import PEFT_PREFIX

_FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
)
"""Neighbours that vLLM computes in one product, in its order."""


def fuse_neighbours(model: torch.nn.Module) -> dict[frozenset[str], torch.Tensor]:
    """Let the weights of neighbouring layers be views of one tensor; return these, by the parameters they are made of.

    vLLM then uses the same tensors, and the trainer's layers compute as before.
    """
    found = {}
    for prefix, module in model.named_modules():
        for names in _FUSED:
            layers = [getattr(module, name, None) for name in names]
            if not all(isinstance(layer, torch.nn.Linear) for layer in layers):
                continue
            for kind in ("weight", "bias"):
                parts = [getattr(layer, kind) for layer in layers if layer is not None]
                if all(isinstance(part, torch.Tensor) for part in parts):
                    whole = torch.cat([part.detach() for part in parts])
                    for part, view in zip(parts, whole.split([len(part) for part in parts]), strict=True):
                        part.data = view
                    found[frozenset(f"{prefix}.{name}.{kind}" for name in names)] = whole
    return found


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a base parameter of a model with PEFT's adapters."""
    return name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
