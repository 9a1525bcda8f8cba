"""The adapter in PEFT's files for an engine or a server that loads them, as a version of a training under way."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import completed
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.lora.adapter import Adapter


def write_version(folder: Path, weights: Mapping[str, torch.Tensor], adapter: Adapter) -> None:
    """Write an adapter's export to a new folder."""
    whole = completed(weights, adapter.linear_names)
    write_adapter(folder, whole, adapter_config(whole, adapter.config, base_model=""))


def replace_version(
    folder: Path, weights: Mapping[str, torch.Tensor], adapter: Adapter, kept: Collection[Path] = ()
) -> None:
    """Write an adapter's export to a new folder, which is whole or absent, and remove all that is beside it.

    `kept`: folders of earlier versions that stay.

    Raises:
        InputError: the folder cannot be written.
    """
    under_way = folder.with_name(f".{folder.name}")
    try:
        write_version(under_way, weights, adapter)
        under_way.rename(folder)
        for other in folder.parent.iterdir():
            if other != folder and other not in kept:
                shutil.rmtree(other)
    except OSError as error:
        raise InputError(
            "spec.rollout.serverFolder",
            f"{folder.parent}, which cannot be written ({error.strerror or error})",
            "a folder that workers can write to, with room for rollout.maxStaleness + 2 versions of the adapter",
            "Mount a volume there, or name another folder.",
        ) from error
