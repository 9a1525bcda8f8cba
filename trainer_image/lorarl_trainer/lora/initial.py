"""The adapter of `spec.adapter.initFrom`, and how one of a smaller rank gets the job's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_A, _B = ".lora_A.weight", ".lora_B.weight"


@dataclass(frozen=True)
class InitialAdapter:
    """An adapter to start from, as its files have it.

    Attributes:
        weights: the content of adapter_model.safetensors.
        rank: its own rank, at most the job's.
        scale: its own factor of B A x.
        base: the base model that it names; None if it names none, or if its fingerprint was compared.
        quantization: how that base was quantized; None if the adapter does not say.
        expert_rank: its own rank on each expert's layers; None without any.
        chat_template: the one in its folder; None without any, or if prompts have none.
    """

    weights: bytes
    rank: int
    scale: float
    base: str | None = None
    quantization: str | None = None
    expert_rank: int | None = None
    chat_template: str | None = None


def widened(
    adapter: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor], factor: float
) -> dict[str, torch.Tensor]:
    """Return an adapter of a larger rank that computes the same.

    B gets columns of zeros, so the new rows of A change nothing. Those are a fresh adapter's: where A and B are both
    zero, neither has a gradient.

    Args:
        adapter: A is [r, inputs] and B is [outputs, r], in Hugging Face names. Other tensors stay as they are.
        fresh: a fresh adapter of the larger rank, with the same modules.
        factor: the adapter's own scale over that of the larger rank. B is multiplied by it.

    Returns:
        The adapter, with A and B in fp32.
    """
    import torch

    wide = dict(adapter)
    for name in adapter.keys() & fresh.keys():
        own, new = adapter[name].float(), fresh[name]
        if name.endswith(_A):
            wide[name] = torch.cat([own, new[len(own) :].to(own)])
        elif name.endswith(_B):
            wide[name] = torch.nn.functional.pad(own * factor, (0, new.shape[1] - own.shape[1]))
    return wide
