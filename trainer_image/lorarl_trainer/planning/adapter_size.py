"""Sizes of an adapter: what the trainer trains, and what vLLM has place for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lorarl_api.v1alpha1 import AdapterSpec, served_rank
from lorarl_trainer.lora.experts import is_expert, padded_rank
from lorarl_trainer.lora.targets import last_part, megatron_linears
from lorarl_trainer.models.layer_kinds import LAYER_KINDS
from lorarl_trainer.models.model_sizes import LinearSize, ModelSizes


@dataclass(frozen=True)
class AdapterSize:
    """The layers of an adapter.

    Attributes:
        layers: the size, the rank and the number of its layers outside of experts, whatever their names.
        layers_of_experts: the same of experts.
        served_layers: the size, the number of parts and the number of those layers outside of experts that vLLM has
            buffers for. Queries, keys and values are parts of one layer there, and gate and up are.
        served_experts: the size and number of the experts' layers that vLLM has buffers for: all of them or none.
        served_rank: of the buffers.
        inner: values of A x, of one token in all layers outside of experts.
        joined: parameters of the adapters of several parts that the trainer joins, in all layers outside of experts.
        expert_rank: of the buffers of experts on a GPU (`engine/vllm/patches/gpu_experts.py`).
        gate_up_rank: of gate and up of an expert where the trainer joins them (`lora/grouped_experts.py`).
        dora: each output of a layer has a parameter more.
        sharing: so many experts share each matrix on the side of the hidden state; 0: each has its own.
    """

    layers: tuple[tuple[LinearSize, int, int], ...]
    layers_of_experts: tuple[tuple[LinearSize, int, int], ...]
    served_layers: tuple[tuple[LinearSize, int, int], ...]
    served_experts: tuple[tuple[LinearSize, int], ...]
    served_rank: int
    inner: int
    joined: int
    expert_rank: int = 0
    gate_up_rank: int = 0
    dora: bool = False
    sharing: int = 0

    @classmethod
    def of(cls, adapter: AdapterSpec, model: ModelSizes) -> AdapterSize:
        """Return the size of an adapter on a model; see `ModelSizes.adapted` for the errors.

        What would make a job fit is sought among many that have the same adapter, so the model keeps its size. A
        mixture of 94 layers with 128 experts has 36,000 linear layers, which take seconds to match with names.
        """
        known, fields = model.adapter_sizes, adapter.model_dump_json()
        if fields not in known:
            known[fields] = cls._measured(adapter, model)
        return known[fields]

    @classmethod
    def _measured(cls, adapter: AdapterSpec, model: ModelSizes) -> AdapterSize:
        adapted, of_experts = model.adapted(adapter), model.expert_rank(adapter) or 0
        plain, experts = ([one for one in adapted if is_expert(one.name) is kind] for kind in (False, True))
        layers, layers_of_experts = (
            tuple((layer, rank, count) for layer, count in _by_size(those))
            for rank, those in ((adapter.rank, plain), (of_experts, experts))
        )
        outside, inside = ([one for one in model.linears if is_expert(one.name) is kind] for kind in (False, True))
        fused = _fused(outside, {last_part(one.name) for one in plain})
        # Of type `lora`, one adapter is on all parts of a layer, and nothing is joined.
        joined = [one for one in fused if one[1] > 1 and adapter.type != "lora"]
        trained = sum(not is_expert(target.hf_names[0]) for target in model.targets(adapter))
        return cls(
            layers=layers,
            layers_of_experts=layers_of_experts,
            served_layers=fused,
            served_experts=tuple(_by_size(inside)) if experts else (),
            served_rank=served_rank(adapter.rank),
            inner=adapter.rank * trained,
            joined=sum(n * parts * adapter.rank * (one.inputs + one.outputs) for one, parts, n in joined),
            expert_rank=padded_rank(of_experts),
            gate_up_rank=padded_rank(2 * of_experts),
            dora=adapter.dora,
            sharing=model.experts if adapter.shares_outer else 0,
        )

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

    def gathered(self) -> int:
        """Return the parameters outside of experts that tensor-parallel ranks, which have a share each, gather.

        They are A of a layer that is split by its outputs, and B of one that is split by its inputs.
        """
        return sum(n * r * (one.inputs if one.split_output else one.outputs) for one, r, n in self.layers)

    def joined_experts(self, expert_ranks: int) -> int:
        """Return the parameters of experts' adapters, joined, on each of the ranks that share the experts.

        With rank R of gate and up together, A is [R, in] and B, block-diagonal, [both outs, R].
        """
        found = 0
        for layer, count in self.served_experts:
            if layer.split_output:  # gate or up: half of both
                found += count * self.gate_up_rank * (layer.inputs + 2 * layer.outputs) // 2
            else:
                found += count * self.expert_rank * (layer.inputs + layer.outputs)
        return found // expert_ranks

    def served(self, ranks: int, *, on_gpu: bool = False) -> int:
        """Return the elements of vLLM's buffers on each of so many ranks (`engine/vllm/patches/linear.py`).

        A layer of n parts has A [n rank, in] and B [all outs, n rank]: B's of the parts stand along a diagonal, with
        zeros beside them. vLLM has buffers for a layer whole if it has any for a part of it, and for all layers of the
        same name. A is split where the layer's input is, B where its output is. On a GPU, B of an expert's gate and up
        stands along a diagonal too.
        """
        found = 0
        for layer, parts, count in self.served_layers:
            found += count * parts * self.served_rank * _whole_and_split(layer, ranks)
        for layer, count in self.served_experts:
            if on_gpu:
                more = layer.outputs if layer.split_output else 0
                found += count * self.expert_rank * (layer.inputs + layer.outputs + more)
            else:
                found += count * self.served_rank * _whole_and_split(layer, ranks)
        return found

    def served_beside(self, adapters: int) -> int:
        """Return the elements of vLLM's buffers for several adapters beside each other, on one rank, without experts.

        A layer of n parts has n A's and n B's for each adapter, each with its own outputs.
        """
        return sum(
            adapters * count * self.served_rank * (parts * layer.inputs + layer.outputs)
            for layer, parts, count in self.served_layers
        )

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


def _fused(layers: Iterable[LinearSize], names: Collection[str]) -> tuple[tuple[LinearSize, int, int], ...]:
    """Return the size, the number of parts and the number of the layers of which a part has one of these names.

    Names are the last parts of full ones. vLLM joins the same layers as Megatron does, and some that keep a state.
    """
    products = [item for kind in LAYER_KINDS.values() for item in kind.products.items()]
    by_name = {layer.name: layer for layer in layers}
    counted: Counter[tuple[tuple[bool, int, int], int]] = Counter()
    for linear in megatron_linears(by_name):
        parts = [by_name[name] for name in linear.hf.values()]
        number, (parent, _, last) = len(parts), parts[0].name.rpartition(".")
        if of_kind := next(((joined, count) for joined, count in products if last in joined), None):
            joined, number = of_kind
            if last != joined[0]:
                continue
            parts = [by_name[f"{parent}.{name}"] for name in joined]
        if any(last_part(part.name) in names for part in parts):
            outputs = sum(part.outputs for part in parts)
            counted[(parts[0].split_output, parts[0].inputs, outputs), number] += 1
    return tuple((LinearSize("", *size), parts, count) for (size, parts), count in counted.items())


def _whole_and_split(layer: LinearSize, ranks: int) -> int:
    if layer.split_output:
        return layer.inputs + layer.outputs // ranks
    return layer.inputs // ranks + layer.outputs
