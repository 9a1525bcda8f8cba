"""Computes a merged model again, from the files of base and adapter alone: W + scale B A, without PEFT."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.kernels.formats import Format
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.lora.files import CONFIG_FILE, MAGNITUDE, WEIGHTS_FILE
from lorarl_trainer.lora.peft_options import refused_options
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES
from lorarl_trainer.models.stored_weights import StoredTensor, stored_weights
from lorarl_trainer.trained_adapters.source import ARGUMENT

if TYPE_CHECKING:
    import torch

_COMPUTED = frozenset(
    ["bias", "modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern"]
)
"""Options of PEFT beyond plain LoRA that this computes too. With others, such as pissa, the base changes as well."""
_ROUNDING = {"F64": 1e-5, "F32": 1e-5, "BF16": 2.0**-7, "F16": 2.0**-9}
"""How far an element may be off, as a share of its parts: two roundings, with room for the order of a sum."""


@dataclass(frozen=True)
class Recomputed:
    """What was found: how many weights were computed again, and whether one differs from the base's."""

    count: int
    changed: bool


def recompute(
    base: Path, adapter: Path, merged: Path, quantized: Mapping[str, Format] = MappingProxyType({})
) -> Recomputed:
    """Compare a merged model's files with base and adapter.

    Each adapted weight is computed in float64 (E. Hu et al., "LoRA", arXiv:2106.09685, section 4.1; for DoRA,
    arXiv:2402.09353, equation 5). All others have to be the base's, or those that were saved with the adapter. Weights
    that only one side has, such as a tied output layer, are left out. The weights that are `quantized` were rounded to
    codes before the training.

    Returns:
        How many adapted weights were compared: 0 if the files of the base have other names or formats than
        Transformers writes, or the adapter has options that this does not compute.

    Raises:
        LorarlError: a weight is another one.
    """
    config = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))
    try:
        before = stored_weights(base)
    except InputError:  # no safetensors
        before = {}
    if config.get("peft_type") != "LORA" or refused_options(config).keys() - _COMPUTED or not before:
        return Recomputed(0, changed=False)
    from lorarl_trainer.kernels.quantized_linear import rounded

    in_model = _names_in_model(base)
    own = {name.replace(".base_layer.", "."): tensor for name, tensor in _tensors(adapter).items()}
    after, layers = stored_weights(merged), _layers(own)
    if layers - {in_model(name).removesuffix(".weight") for name in after}:
        return Recomputed(0, changed=False)
    adapted, changed = 0, False
    for stored_name, stored in after.items():
        name = in_model(stored_name)
        if stored_name not in before or (is_expert(name.removesuffix(".weight")) and config.get("use_rslora")):
            continue  # PEFT scales fused gate and up of experts by their common rank
        base_weight, weight = _read(stored_name, before[stored_name]), _read(stored_name, stored)
        if (of := quantized.get(name)) is not None:
            base_weight = rounded(of, base_weight, weight.dtype)
        layer = name.removesuffix(".weight")
        if layer in layers:
            adapted += 1
            _require_near(name, stored.stored.dtype, weight, *_adapted(base_weight, layer, own, config))
        elif not weight.equal(own.get(name, base_weight).to(weight)):
            raise _another(name)
        changed = changed or not weight.equal(base_weight.to(weight))
    return Recomputed(adapted, changed)


def _names_in_model(base: Path) -> Callable[[str], str]:
    """Return what gives a weight the name that the adapter has for it: some families have another one in files."""
    model_type = json.loads((base / "config.json").read_text(encoding="utf-8")).get("model_type")
    family = FSDP_FAMILIES.get(model_type)
    return family.in_model if family else str


def _layers(own: Mapping[str, torch.Tensor]) -> set[str]:
    """Return the layers that have the matrices of an adapter."""
    return {name.partition(".lora_")[0] for name in own if ".lora_A." in name or name.endswith(".lora_embedding_A")}


def changes_nothing(adapter: Path) -> bool:
    """Return whether each matrix B of an adapter is zero, as in a new one, and nothing was saved beside them."""
    return not any(
        tensor.any() for name, tensor in _tensors(adapter).items() if ".lora_A" not in name and MAGNITUDE not in name
    )


def _tensors(adapter: Path) -> dict[str, torch.Tensor]:
    from lorarl_trainer.lora.peft_format import read_adapter

    return read_adapter((adapter / WEIGHTS_FILE).read_bytes(), ARGUMENT)


def _adapted(
    base: torch.Tensor, layer: str, own: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a weight [out, in] should be, and the size of the parts that are rounded, both in float64."""
    is_embedding = f"{layer}.lora_embedding_A" in own  # [rank, vocabulary] and [hidden, rank]
    ends = (".lora_embedding_A", ".lora_embedding_B") if is_embedding else (".lora_A.weight", ".lora_B.weight")
    a, b = (own[layer + end].double() for end in ends)
    before = base.double().T if is_embedding else base.double()
    scale = _scale(layer, len(a), config)
    parts = before.abs() + scale * (b.norm(dim=1)[:, None] * a.norm(dim=0)[None, :])
    whole = before + scale * (b @ a)
    if (magnitude := own.get(f"{layer}.{MAGNITUDE}")) is not None:
        length = magnitude.double().reshape(-1, 1) / whole.norm(dim=1, keepdim=True)
        whole, parts = whole * length, 4 * parts * length.abs()  # PEFT rounds the norms too
    return (whole.T, parts.T) if is_embedding else (whole, parts)


def _scale(layer: str, rank: int, config: Mapping[str, Any]) -> float:
    alphas: Mapping[str, float] = config.get("alpha_pattern") or {}
    alpha = next((alphas[key] for key in alphas if re.match(rf"(.*\.)?({key})$", layer)), config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _require_near(name: str, dtype: str, weight: torch.Tensor, expected: torch.Tensor, parts: torch.Tensor) -> None:
    if not bool(((weight.double() - expected).abs() <= _ROUNDING[dtype] * parts + 1e-12).all()):
        raise _another(name)


def _another(name: str) -> LorarlError:
    return LorarlError(
        f"the merged model's {name} is not what base and adapter give, computed again from their files, beyond what "
        "rounding explains. Nothing was written. Serve base and adapter without merging."
    )


def _read(name: str, weight: StoredTensor) -> torch.Tensor:
    from safetensors import safe_open

    with safe_open(weight.file, "pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor
