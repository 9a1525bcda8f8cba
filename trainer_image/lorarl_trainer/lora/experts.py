"""Adapters on the experts of a mixture, in PEFT's files: what both PEFT and vLLM read. Nothing here imports torch.

Each expert has its own A and B of gate, up and down, by the names of its layers (mlp.experts.0.gate_proj). PEFT 0.21
makes one adapter of a layer's experts, and vLLM 0.26 one buffer, so both want all three projections of all experts, of
one rank. What the training leaves out is in the files as zeros.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

_EXPERT = re.compile(r"\.experts\.\d+\.[^.]+$")
_NUMBER = re.compile(r"(?<=\.experts)\.\d+(?=\.[^.]+$)")
_DOWN = ("down_proj", "w2")
_A, _B = ".lora_A.weight", ".lora_B.weight"
EXPERTS = "experts"
"""What vLLM calls all experts of a layer."""


def is_expert(layer: str) -> bool:
    """Return whether a linear layer, by its full Hugging Face name, belongs to an expert."""
    return _EXPERT.search(layer) is not None


def outer_matrix(layer: str) -> Literal["A", "B"]:
    """Return which matrix of an expert's layer is on the side of the hidden state: B of down, or A."""
    return "B" if layer.endswith(_DOWN) else "A"


def of_all_experts(layer: str) -> str:
    """Return an expert's layer without the expert's number: what stands for that layer of all experts."""
    return _NUMBER.sub("", layer)


def expert_layers(layers: Iterable[str]) -> list[str]:
    """Return those of the layers that belong to experts."""
    return [layer for layer in layers if is_expert(layer)]


def usual_rank(rank: int, experts: int, active: int) -> int:
    """Return the rank of an expert's adapter, so that a token meets about as many parameters as in a dense model.

    J. Schulman and Thinking Machines Lab, "LoRA Without Regret" (2025), divide the rank by the number of active
    experts. Here it is the share of active experts: all experts together then have the rank of a dense layer times
    the number of active ones.
    """
    return max(1, rank * active // experts)


def padded_rank(rank: int) -> int:
    """Return the rank that a GPU computes adapters of experts with: its grouped products want rows of 16 bytes each."""
    return -(-rank // 8) * 8


def trained_part(adapter: Mapping[str, torch.Tensor], names: Collection[str]) -> dict[str, torch.Tensor]:
    """Return an adapter from such files without the zeros of experts that are not among the names."""
    return {
        name: tensor
        for name, tensor in adapter.items()
        if name in names or not is_expert(name.partition(".lora_")[0]) or tensor.any()
    }


def completed(adapter: Mapping[str, torch.Tensor], layers: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return an adapter with zeros for each expert's layer that it leaves out, if it has any expert's at all.

    Args:
        adapter: A [rank, in] and B [out, rank] by Hugging Face name.
        layers: the full names of all linear layers of the model.
    """
    whole = dict(adapter)
    example = next((name for name in adapter if name.endswith(_A) and is_expert(name.removesuffix(_A))), None)
    if example is None:
        return whole
    layer = example.removesuffix(_A)
    a, b = adapter[example], adapter[layer + _B]
    hidden, inner = a.shape[1], b.shape[0]
    if layer.endswith(_DOWN):
        hidden, inner = inner, hidden
    for left_out in expert_layers(layers):
        if left_out + _A not in whole:
            inputs, outputs = (inner, hidden) if left_out.endswith(_DOWN) else (hidden, inner)
            whole[left_out + _A], whole[left_out + _B] = a.new_zeros(len(a), inputs), b.new_zeros(outputs, len(a))
    return whole
