"""Models with the shape of real ones and random weights, made on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def save_shape(config: Mapping[str, Any], folder: Path) -> Path:
    """Write a model with this config.json in bf16, unless it is there."""
    if folder.exists():
        return folder
    from transformers import AutoConfig, AutoModelForCausalLM

    own = AutoConfig.for_model(**config)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            AutoModelForCausalLM.from_config(own, dtype=torch.bfloat16).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.cuda.empty_cache()
    return folder
