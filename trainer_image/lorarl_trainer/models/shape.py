"""What a model's config.json says of its shape."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.lora.experts import usual_rank
from lorarl_trainer.models.layer_kinds import State


@dataclass(frozen=True)
class FrozenExperts:
    """A mixture in the place of each layer's MLP whose experts get no adapter.

    Attributes:
        count: a layer's experts.
        active: those that a token is sent to.
        inner: the inner size of each.
        shared: that of the expert that every token is sent to besides; 0 for none.
        dense: the first layers that have an MLP in their place.
        kept: how often its inner values are kept until the backward pass: gate, its activation, up and their product.
    """

    count: int
    active: int
    inner: int
    shared: int = 0
    dense: int = 0
    kept: int = 4


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What a model's config.json says.

    Attributes:
        tied: the output layer is the embedding.
        plain_layers: all layers are of Llama's kind, see `supported_models.has_plain_layers`.
        megatron: Megatron trains such models.
        window: how many tokens attention sees at least; None for all.
        soft_cap: attention's scores are capped.
        served_as_it_is: vLLM can use a trainer's tensors.
        served_merged: vLLM by itself serves an adapter only merged into the model.
        decoder: where the layers are, as a part of their tensors' names.
        transposed: weights of linear layers are [inputs, outputs].
        heads: attention heads of a layer.
        experts: in each layer, in the place of its MLP; 0 for none.
        active_experts: those that a token is sent to.
        sinks: attention's heads have a sink each, a score that no value has.
        whole_norms: queries and keys are normalised, all heads together.
        states: of the layers that keep a state in the place of keys and values.
        key_widths: how wide the keys are of each layer that has its own, if layers differ in that.
        frozen_experts: in the place of each layer's MLP; None for experts with adapters, and for none.
        sees: it takes images too.
        linears_outside: linear layers outside of the decoder's layers that may have an adapter.
        adapted_part: a part of the names of all linear layers that may have an adapter.
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int
    tied: bool
    plain_layers: bool
    megatron: bool = True
    window: int | None = None
    soft_cap: bool = False
    served_as_it_is: bool = True
    served_merged: bool = False
    decoder: str = "model.layers."
    transposed: bool = False
    experts: int = 0
    active_experts: int = 0
    sinks: bool = False
    whole_norms: bool = False
    states: tuple[State, ...] = ()
    key_widths: tuple[int, ...] = ()
    frozen_experts: FrozenExperts | None = None
    sees: bool = False
    linears_outside: Collection[str] = ()
    adapted_part: str = ""

    @property
    def unsplit(self) -> str | None:
        """Why the model is not split over ranks, if it is not."""
        if self.states:
            return "whose layers keep a state: one that is split over ranks was not compared"
        if self.frozen_experts:
            return "with experts that stay as they are: a split of them was not compared"
        return "whose layers differ in their heads: a split of them was not compared" if self.key_widths else None

    @property
    def attention_layers(self) -> int:
        """How many layers keep keys and values."""
        return self.layers - len(self.states)

    def attends_plainly(self, longest: int) -> bool:
        """Return whether flash attention computes it: it sees all of so many tokens, with scores and heads as usual."""
        plain = not self.soft_cap and not self.key_widths and not self.sinks
        return plain and (self.window is None or self.window >= longest)

    def expert_rank(self, adapter: AdapterSpec) -> int | None:
        """Return the rank of an adapter on each expert's layers; None for a model without experts."""
        if not self.experts:
            return None
        return adapter.expert_rank or usual_rank(adapter.rank, self.experts, self.active_experts)
