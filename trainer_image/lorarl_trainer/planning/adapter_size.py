"""Sizes of an adapter: what the trainer trains, and what vLLM has place for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lorarl_api.v1alpha1 import AdapterSpec, served_rank
from lorarl_trainer.planning.model_sizes import LinearSize, ModelSizes


@dataclass(frozen=True)
class AdapterSize:
    """The layers of an adapter.

    Attributes:
        rank: of A and B.
        layers: how many there are of each size, whatever their names.
        dora: each output of a layer has a parameter more.
    """

    rank: int
    layers: tuple[tuple[LinearSize, int], ...]
    dora: bool = False

    @classmethod
    def of(cls, adapter: AdapterSpec, model: ModelSizes) -> AdapterSize:
        """Return the size of an adapter on a model; see `ModelSizes.adapted` for the errors."""
        sizes = Counter(LinearSize("", one.split_output, one.inputs, one.outputs) for one in model.adapted(adapter))
        return cls(adapter.rank, tuple(sizes.items()), adapter.dora)

    def trainable(self, ranks: int) -> int:
        """Return the adapter's parameters on each of so many tensor-parallel ranks."""
        rank, more = self.rank, int(self.dora)
        return sum(n * (rank * layer.inputs + (rank + more) * layer.outputs) for layer, n in self.layers) // ranks

    def served(self, ranks: int) -> int:
        """Return the elements of vLLM's buffers on each of so many ranks.

        A is split where the layer's input is, B where its output is.
        """
        return served_rank(self.rank) * sum(count * _whole_and_split(layer, ranks) for layer, count in self.layers)


def _whole_and_split(layer: LinearSize, ranks: int) -> int:
    if layer.split_output:
        return layer.inputs + layer.outputs // ranks
    return layer.inputs // ranks + layer.outputs
