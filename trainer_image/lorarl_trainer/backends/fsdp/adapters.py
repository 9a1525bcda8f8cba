"""PEFT's adapters on a Transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.lora.files import MAGNITUDE
from lorarl_trainer.lora.targets import SHARED_EXPERT_GATE, Target, last_part
from lorarl_trainer.lora.tensor_names import PEFT_PREFIX
from lorarl_trainer.models.fsdp_families import may_be_adapted

_ADAPTER = ".default"
"""PEFT's name of an adapter that was given none, in the names of its tensors."""


def linear_names(model: Any) -> list[str]:
    """Return the names of the linear layers that may have an adapter."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
        and module is not head
        and last_part(name) != SHARED_EXPERT_GATE
        and may_be_adapted(model.config.model_type, name)
    ]


def names_like_linears(model: Any) -> list[str]:
    """Return the names of all modules that PEFT takes for one of the linear layers, if it is given its last part.

    Gemma 4's vision tower has modules of such names that PEFT puts no adapter on, and refuses.
    """
    head, last = model.get_output_embeddings(), set(map(last_part, linear_names(model)))
    return [name for name, module in model.named_modules() if last_part(name) in last and module is not head]


def attach(model: Any, adapter: AdapterSpec, targets: Sequence[Target]) -> Any:
    """Attach an adapter to each target; return PEFT's model."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        target_modules=[name for target in targets for name in target.hf_names],
        task_type="CAUSAL_LM",
    )
    # The optimizer has fp32 masters.
    return get_peft_model(model, config, autocast_adapter_dtype=False)


def row_lengths(model: Any) -> dict[str, torch.Tensor]:
    """Return copies of DoRA's row lengths of a new adapter, by their names in PEFT's files; none without DoRA."""
    return {
        adapter_name(name): parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if f".{MAGNITUDE}." in name
    }


def adapter_name(name: str) -> str:
    """Return the name in PEFT's files, without its prefix, of an adapter's parameter."""
    name = name.removeprefix(PEFT_PREFIX).replace(f"{_ADAPTER}.", ".")
    return name.removesuffix(".weight") if name.endswith(f"{MAGNITUDE}.weight") else name
