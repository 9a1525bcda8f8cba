"""Whether a running server can serve an adapter as it was trained, judged by the adapter's files. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorarl_trainer.lora.files import QUANTIZATION
from lorarl_trainer.lora.peft_options import refused_options

_ITS_RANKS = frozenset(("rank_pattern", "alpha_pattern", "target_parameters"))


@dataclass(frozen=True)
class Terms:
    """What a server serves adapters of.

    Attributes:
        base: what the user calls its base model.
        fingerprint: of that model's files.
        rank: the largest that it takes.
        experts_on_cpu: whether the base is a mixture of experts on a CPU, for which vLLM does not start with adapters.
    """

    base: str
    fingerprint: str
    rank: int
    experts_on_cpu: bool = False


def rank_of(config: Mapping[str, Any]) -> int:
    """Return the largest rank in an adapter_config.json: experts may have a smaller one than other layers."""
    return max(int(config["r"]), *(config.get("rank_pattern") or {"": 0}).values())


def misfit(config: Mapping[str, Any], metadata: Mapping[str, Any], terms: Terms) -> str | None:
    """Return why an adapter cannot be served beside this base model, and what helps; None if it can.

    `config` and `metadata` are adapter_config.json and lorarl_metadata.json, which adapters of other programs lack.
    """
    trained_on = metadata.get("baseModelFingerprint", terms.fingerprint)
    if trained_on != terms.fingerprint:
        named = metadata.get("baseModel") or config.get("base_model_name_or_path")
        return f"it was trained on another base model than {terms.base}: {named}. Name that one with --base."
    if config.get("peft_type") != "LORA":
        return f"its peft_type is {config.get('peft_type')}, and vLLM serves LORA. Use lorarl chat, or merge it."
    if terms.experts_on_cpu:
        return "vLLM takes no adapters of mixtures of experts on a CPU. Serve it on a GPU, or merge it: lorarl merge."
    if fault := _other_numbers(config, metadata):
        return f"{fault}, so vLLM would not compute what was trained. Merge it: lorarl merge."
    if (rank := rank_of(config)) > terms.rank:
        return f"its rank is {rank}, and the server takes {terms.rank}. Start a server for it alone."
    return None


def _other_numbers(config: Mapping[str, Any], metadata: Mapping[str, Any]) -> str | None:
    """Return what vLLM does not apply, or applies otherwise than the training."""
    if quantization := metadata.get(QUANTIZATION):
        return f"it was trained on the base in {quantization}, and the server has it as its files are"
    if metadata.get("servedMerged"):
        return "vLLM has other layers than the model, and would bind it to some of them"
    options = {name: value for name, value in refused_options(config).items() if name not in _ITS_RANKS}
    if config.get("use_dora"):
        options["use_dora"] = True
    if options:
        listed = ", ".join(f"{name}: {value!r}" for name, value in sorted(options.items()))
        return f"it is more than plain LoRA ({listed})"
    return None if _has_one_scale(config) else "its layers have several scales, and vLLM takes that of lora_alpha and r"


def _has_one_scale(config: Mapping[str, Any]) -> bool:
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}

    def scale(name: str) -> float:
        rank, alpha = ranks.get(name, config["r"]), alphas.get(name, config["lora_alpha"])
        return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))

    return all(math.isclose(scale(name), scale("")) for name in {*ranks, *alphas})
