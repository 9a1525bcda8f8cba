"""The adapter of a trainer's model, as an engine sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.lora.blocks import Block
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.targets import Target


@dataclass(frozen=True)
class ModelAdapter:
    """See `lora.adapter.Adapter`."""

    model: AdaptedModel
    layout: AdapterLayout
    config: AdapterConfig

    @property
    def targets(self) -> Sequence[Target]:
        return self.model.targets

    @property
    def linear_names(self) -> Sequence[str]:
        return self.model.linear_names

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        return list(self.model.parameters.values())

    @property
    def group(self) -> dist.ProcessGroup:
        return self.model.parallel.model_group

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.layout.shapes

    @property
    def blocks(self) -> Mapping[tuple[int, int], Sequence[Block]]:
        return self.layout.blocks

    def export(self) -> Mapping[str, torch.Tensor]:
        return self.model.export()
