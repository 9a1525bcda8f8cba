"""What an engine asks of a backend whose frozen tensors it uses as its own. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class SharesBase(Protocol):
    """A backend that can lend its frozen tensors to an engine in the same process.

    Attributes:
        qkv_by_group: queries, keys and values of one tensor alternate by key-value group, as Megatron has them. If not,
            they follow each other, as vLLM has them.
    """

    qkv_by_group: bool

    def base_in_hf_names(self) -> Mapping[frozenset[str], torch.Tensor]:
        """Return this rank's frozen tensors, by the Hugging Face parameters that each one is made of."""
