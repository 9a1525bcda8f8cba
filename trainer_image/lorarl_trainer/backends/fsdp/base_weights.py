"""The frozen base in Hugging Face names, with the layers fused that vLLM fuses."""

from __future__ import annotations

from typing import Any

import torch

from lorarl_trainer.kernels.formats import HELD_NAMES
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX
from lorarl_trainer.models.layer_kinds import LAYER_KINDS

_QUERY_KEY_VALUE = ("q_proj", "k_proj", "v_proj")
_FUSED = (
    _QUERY_KEY_VALUE,
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    *(names for kind in LAYER_KINDS.values() for names in kind.products),
)
"""Neighbours that vLLM computes in one product, in its order."""
_OF_ALL_EXPERTS = ("gate_up_proj", "down_proj")


def fuse_neighbours(model: torch.nn.Module) -> dict[frozenset[str], torch.Tensor]:
    """Let the weights of neighbouring layers be views of one tensor; return these, by the parameters they are made of.

    vLLM then uses the same tensors, and the trainer's layers compute as before.
    """
    found = {}
    for prefix, module in model.named_modules():
        found.update(_experts_of_vllm(prefix, module))
        for names in _FUSED:
            layers = [layer for name in names if isinstance(layer := getattr(module, name, None), torch.nn.Linear)]
            if not layers or (len(layers) < len(names) and not _takes_keys_elsewhere(names, module)):
                continue
            for kind in (*HELD_NAMES, "bias"):
                parts: list[Any] = [getattr(layer, kind, None) for layer in layers]
                if all(isinstance(part, torch.Tensor) for part in parts):
                    own = [part.detach() for part in parts]
                    own += _elsewhere(own, module) if len(own) < len(names) else []
                    whole = torch.cat(own)
                    for part, view in zip(parts, whole.split([len(one) for one in own]), strict=False):
                        part.data = view
                    found[frozenset(f"{prefix}.{name}.{kind}" for name in names)] = whole
            if names == _QUERY_KEY_VALUE and len(layers) == 1:
                # Of keys that are dropped.
                found[frozenset([f"{prefix}.k_norm.weight"])] = module.q_norm.weight.detach()
    return found


def _experts_of_vllm(prefix: str, module: Any) -> dict[frozenset[str], torch.Tensor]:
    """Lay out the weights of a layer's experts as vLLM has them, [experts, outputs, inputs]; return these.

    The trainer's layers compute with views that are transposed.
    """
    found = {}
    for name, weight in module.named_parameters(recurse=False):
        if name in _OF_ALL_EXPERTS and weight.dim() == 3 and module.is_transposed:
            whole = weight.detach().transpose(1, 2).contiguous()
            weight.data = whole.transpose(1, 2)
            found[frozenset([f"{prefix}.{name}"])] = whole
    return found


def _takes_keys_elsewhere(names: tuple[str, ...], module: torch.nn.Module) -> bool:
    """Return whether a layer of attention has queries, and takes its values or keys from elsewhere."""
    return names == _QUERY_KEY_VALUE and hasattr(module, "num_key_value_groups") and hasattr(module, "q_proj")


def _elsewhere(own: list[torch.Tensor], attention: Any) -> list[torch.Tensor]:
    """Return what vLLM has in the place of a layer's values, or of its keys and values.

    Where values are the keys, it computes both. Where both are an earlier layer's, it computes some and drops them.
    """
    if len(own) == 2:
        return own[1:]
    rows = len(own[0]) // attention.num_key_value_groups
    return [own[0].new_zeros(2 * rows, *own[0].shape[1:])]


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a base parameter of a model with PEFT's adapters."""
    return name.removeprefix(PEFT_PREFIX).replace(".base_layer.", ".")
