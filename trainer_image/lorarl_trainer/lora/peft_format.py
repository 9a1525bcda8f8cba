"""The adapter in PEFT's format, which everything that serves LoRA loads."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.lora.files import CONFIG_FILE, WEIGHTS_FILE
from lorarl_trainer.lora.targets import last_part, shortest_names
from lorarl_trainer.lora.tensor_file import write_tensors
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX, by_own_name

_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def adapter_config(
    names: Iterable[str],
    adapter: AdapterConfig,
    base_model: str,
    all_modules: Collection[str] | None = None,
    *,
    revision: str | None = None,
    dropout: float = 0.0,
    excluded: Collection[str] = (),
) -> dict[str, Any]:
    """Return the content of adapter_config.json.

    Args:
        names: tensor names without PEFT's prefix (model.layers.0.self_attn.q_proj.lora_A.weight).
        adapter: its numbers.
        base_model: the model that the adapter belongs to.
        all_modules: the base model's linear layers. If the adapter leaves out some layers of a name that it has on
            others, full names are listed, because PEFT would put empty adapters on the rest.
        revision: of the base model; PEFT loads it.
        dropout: that of the training.
        excluded: full names of layers that were asked to have no adapter.
    """
    layers = {name.rsplit(".lora_", 1)[0] for name in names}
    # All experts have an adapter or none has, and PEFT knows their layers by the last parts of their names.
    experts = {layer for layer in layers if is_expert(layer)}
    return {
        "base_model_name_or_path": base_model,
        "bias": "none",
        "exclude_modules": shortest_names({layer for layer in excluded if not is_expert(layer)}, all_modules) or None,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_dropout": dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "revision": revision,
        "target_modules": sorted(
            [*shortest_names(layers - experts, all_modules), *{last_part(layer) for layer in experts}]
        ),
        "task_type": "CAUSAL_LM",
        "use_dora": adapter.dora,
        **_numbers(adapter, sorted({last_part(layer) for layer in layers - experts}), with_experts=bool(experts)),
    }


def _numbers(adapter: AdapterConfig, others: Sequence[str], *, with_experts: bool) -> dict[str, Any]:
    """Return an adapter's rank and alpha; `others` are the last parts of its layers' names outside of experts.

    PEFT and vLLM take `r` for experts, whatever `rank_pattern` says. vLLM has one alpha / r for all layers, and with
    rsLoRA PEFT takes the rank of gate and up together. So what rsLoRA makes of alpha is in alpha.
    """
    if not with_experts or adapter.expert_rank is None:
        return {"lora_alpha": adapter.alpha, "r": adapter.rank, "use_rslora": adapter.rslora}
    rank = adapter.expert_rank
    numbers = {"lora_alpha": _plain(adapter.scale * rank), "r": rank, "use_rslora": False}
    if rank == adapter.rank or not others:
        return numbers
    alpha = _plain(adapter.scale * adapter.rank)
    return numbers | {
        "rank_pattern": dict.fromkeys(others, adapter.rank),
        "alpha_pattern": dict.fromkeys(others, alpha),
    }


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def weights_bytes(adapter: Mapping[str, torch.Tensor]) -> memoryview:
    """Return the content of adapter_model.safetensors: the same tensors give the same bytes."""
    return write_tensors({PEFT_PREFIX + name: tensor for name, tensor in adapter.items()}, metadata={"format": "pt"})


def config_bytes(config: Mapping[str, Any]) -> bytes:
    """Return the content of adapter_config.json."""
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()


def write_adapter(folder: Path, adapter: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Write a PEFT adapter to a folder."""
    folder.mkdir(parents=True)
    (folder / CONFIG_FILE).write_bytes(config_bytes(config))
    (folder / WEIGHTS_FILE).write_bytes(weights_bytes(adapter))


def read_adapter(weights: bytes, field: str) -> dict[str, torch.Tensor]:
    """Return the tensors of adapter_model.safetensors by their own names, see `lora.tensor_names`.

    Raises:
        InputError: naming `field`, if the file is broken or holds values that are codes or not finite.
    """
    try:
        tensors = load(weights)
    except SafetensorError as error:
        raise InputError(
            field, f"{WEIGHTS_FILE} that cannot be read ({error})", "a safetensors file", "Copy the adapter again."
        ) from error
    adapter = {own: tensors[stored] for own, stored in by_own_name(tensors, field).items()}
    for name, tensor in adapter.items():
        if tensor.dtype not in _FLOATS:
            got = f"{name} in {str(tensor.dtype).removeprefix('torch.')}"
            raise InputError(field, got, "weights in bf16, fp16 or fp32", "Save the adapter again in one of these.")
    broken = [name for name, tensor in adapter.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise InputError(
            field, f"{broken[0]} with values that are not finite", "finite weights", "Start from an earlier adapter."
        )
    return adapter
