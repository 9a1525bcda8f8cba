"""The formats that `model.quantization` can name: what tensors a frozen weight is held in. Nothing here imports torch.

The numbers of each are in the module of its name: `fp8.py`, `nf4.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lorarl_api.v1alpha1 import Quantization

WEIGHT, SCALE, ROW_SCALE = "weight", "weight_scale", "weight_row_scale"
BLOCK = 64
"""Weights of a row that share a scale in nf4. The last block of a row may be shorter."""


@dataclass(frozen=True)
class HeldTensor:
    """One of the tensors in the place of a weight [out, in].

    Attributes:
        name: of the layer's parameter, in the trainer's model and in vLLM's.
        dtype: as PyTorch names it.
        bytes: of an element.
        inputs: of a row of the weight, for which there is one element; None: there are `in_row` of them for a row.
    """

    name: str
    dtype: str
    bytes: int
    inputs: int | None = None
    in_row: int = 1

    def shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Return the shape for a weight. Its first axis is the weight's, so that rows can be taken and joined."""
        return outputs, self.in_row if self.inputs is None else -(-inputs // self.inputs)


@dataclass(frozen=True)
class Format:
    """How trainer and engine hold the weights of linear layers.

    Attributes:
        tensors: the codes, and what makes numbers of them.
        multiple: of what the inputs of a layer must be.
        cost: a sentence on what a user should know before choosing it.
    """

    name: Quantization
    tensors: tuple[HeldTensor, ...]
    multiple: int
    cost: str

    def bytes_of(self, sizes: Iterable[tuple[int, int]]) -> int:
        """Return the bytes of all tensors of weights with so many outputs and inputs."""
        return sum(held.bytes * math.prod(held.shape(*size)) for size in sizes for held in self.tensors)


FORMATS: Mapping[Quantization, Format] = {
    one.name: one
    for one in (
        Format(
            "fp8",
            (
                HeldTensor(WEIGHT, "float8_e4m3fn", 1, inputs=1),
                HeldTensor(SCALE, "float32", 4),
            ),
            1,
            "With fp8, the base differs from its files: by 0.02 nats a token in a small model.",
        ),
        Format(
            "nf4",
            (
                HeldTensor(WEIGHT, "uint8", 1, inputs=2),
                HeldTensor(SCALE, "uint8", 1, inputs=BLOCK),
                HeldTensor(ROW_SCALE, "float32", 4, in_row=2),
            ),
            2,
            "With nf4, the base differs from its files: by 0.22 nats a token in a small model.",
        ),
    )
}
"""The smallest change to a base first."""
HELD_NAMES = tuple(dict.fromkeys(held.name for one in FORMATS.values() for held in one.tensors))
"""The names of all tensors that a weight may be held in."""


def format_of(quantization: Quantization) -> Format | None:
    """Return the format that `model.quantization` names; None for none."""
    return None if quantization == "none" else FORMATS[quantization]
