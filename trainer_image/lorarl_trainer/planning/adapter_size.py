"""Sizes of an adapter: what the trainer trains, and what vLLM has place for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lorarl_api.v1alpha1 import AdapterSpec, served_rank
from lorarl_trainer.lora.experts import is_expert, padded_rank
from lorarl_trainer.planning.model_sizes import LinearSize, ModelSizes


@dataclass(frozen=True)
class AdapterSize:
    """The layers of an adapter.

    Attributes:
        layers: the size, the rank and the number of its layers outside of experts, whatever their names.
        layers_of_experts: the same of experts.
        served_experts: the size and number of the experts' layers that vLLM has buffers for: all of them or none.
        served_rank: of the buffers.
        expert_rank: of the buffers of experts on a GPU (`engine/vllm/patches/gpu_experts.py`).
        dora: each output of a layer has a parameter more.
        sharing: so many experts share each matrix on the side of the hidden state; 0: each has its own.
    """

    layers: tuple[tuple[LinearSize, int, int], ...]
    layers_of_experts: tuple[tuple[LinearSize, int, int], ...]
    served_experts: tuple[tuple[LinearSize, int], ...]
    served_rank: int
    expert_rank: int = 0
    dora: bool = False
    sharing: int = 0

    @classmethod
    def of(cls, adapter: AdapterSpec, model: ModelSizes) -> AdapterSize:
        """Return the size of an adapter on a model; see `ModelSizes.adapted` for the errors."""
        adapted, of_experts = model.adapted(adapter), model.expert_rank(adapter) or 0
        plain, experts = ([one for one in adapted if is_expert(one.name) is kind] for kind in (False, True))
        layers, layers_of_experts = (
            tuple((layer, rank, count) for layer, count in _by_size(those))
            for rank, those in ((adapter.rank, plain), (of_experts, experts))
        )
        served_experts = tuple(_by_size(one for one in model.linears if experts and is_expert(one.name)))
        served_at, sharing = served_rank(adapter.rank), model.experts if adapter.shares_outer else 0
        return cls(layers, layers_of_experts, served_experts, served_at, padded_rank(of_experts), adapter.dora, sharing)

    def trainable(self, ranks: int, expert_ranks: int = 1) -> int:
        """Return the adapter's parameters on each of so many tensor-parallel ranks, or of those that share experts."""
        own, of_experts = self._of(self.layers), self._of(self.layers_of_experts)
        if not self.sharing:
            return own // ranks + of_experts // expert_ranks
        outer = sum(n * r * _hidden(one) for one, r, n in self.layers_of_experts)
        return own // ranks + (of_experts - outer) // expert_ranks + outer // self.sharing

    def written(self) -> int:
        """Return the adapter's parameters in its files, which have for each expert what it shares with others."""
        return self._of(self.layers) + self._of(self.layers_of_experts)

    def served(self, ranks: int, *, on_gpu: bool = False) -> int:
        """Return the elements of vLLM's buffers on each of so many ranks.

        A is split where the layer's input is, B where its output is. On a GPU, B of an expert's gate and up stands
        along a diagonal, with as many zeros.
        """
        found = sum(count * self.served_rank * _whole_and_split(layer, ranks) for layer, _, count in self.layers)
        for layer, count in self.served_experts:
            if on_gpu:
                more = layer.outputs if layer.split_output else 0
                found += count * self.expert_rank * (layer.inputs + layer.outputs + more)
            else:
                found += count * self.served_rank * _whole_and_split(layer, ranks)
        return found

    def _of(self, layers: Iterable[tuple[LinearSize, int, int]]) -> int:
        more = int(self.dora)
        return sum(n * (r * one.inputs + (r + more) * one.outputs) for one, r, n in layers)


def _hidden(layer: LinearSize) -> int:
    """Return the width of an expert's layer on the side of the hidden state."""
    return layer.inputs if layer.split_output else layer.outputs


def _by_size(layers: Iterable[LinearSize]) -> list[tuple[LinearSize, int]]:
    # A mixture has tens of thousands of them, and a remedy is looked for among dozens of plans.
    counted = Counter((one.split_output, one.inputs, one.outputs) for one in layers)
    return [(LinearSize("", *size), count) for size, count in counted.items()]


def _whole_and_split(layer: LinearSize, ranks: int) -> int:
    if layer.split_output:
        return layer.inputs + layer.outputs // ranks
    return layer.inputs // ranks + layer.outputs
