"""What an engine asks of the adapter that a backend trains. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.lora.targets import Target

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from lorarl_trainer.lora.blocks import Block


class Adapter(Protocol):
    """One rank's share of an adapter."""

    @property
    def config(self) -> AdapterConfig:
        """Rank and alpha."""

    @property
    def targets(self) -> Sequence[Target]:
        """The linear layers that the adapter changes, in the model's order."""

    @property
    def linear_names(self) -> Sequence[str]:
        """Full Hugging Face names of all linear layers but the output layer, with an adapter or without."""

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """This rank's trainable tensors, two-dimensional. They keep their storage for the whole run."""

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that the adapter is split over. A group of one rank: it is whole here."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the whole adapter's tensors, by Hugging Face name."""

    @property
    def blocks(self) -> Mapping[tuple[int, int], Sequence[Block]]:
        """The blocks of each parameter, by global rank and index in that rank's `parameters`."""

    def export(self) -> Mapping[str, torch.Tensor]:
        """Return the whole adapter in Hugging Face names (collective). It may share storage with `parameters`."""
