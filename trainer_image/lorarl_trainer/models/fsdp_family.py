"""What is known of a family of models that `trainer.backend: fsdp` trains: above all, where its tensors are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorarl_trainer.models.experts_of_files import whole_experts
from lorarl_trainer.models.layer_kinds import LAYER_KINDS
from lorarl_trainer.models.packed_weights import plain_shapes
from lorarl_trainer.models.shape import FrozenExperts

ATTENTION = {
    "self_attn.q_proj.weight": "q h",
    "self_attn.k_proj.weight": "k h",
    "self_attn.v_proj.weight": "k h",
    "self_attn.o_proj.weight": "h q",
}
BIASED_QKV = {"self_attn.q_proj.bias": "q", "self_attn.k_proj.bias": "k", "self_attn.v_proj.bias": "k"}
GATED = {"mlp.gate_proj.weight": "f h", "mlp.up_proj.weight": "f h", "mlp.down_proj.weight": "h f"}
HEAD_NORMS = {"self_attn.q_norm.weight": "d", "self_attn.k_norm.weight": "d"}
WHOLE_NORMS = {"self_attn.q_norm.weight": "q", "self_attn.k_norm.weight": "k"}


def norms(*names: str) -> dict[str, str]:
    """Return the weights of norms of these names, over the hidden states."""
    return {f"{name}.weight": "h" for name in names}


def biased(names: Mapping[str, str]) -> dict[str, str]:
    """Return the weights with a bias for each, as long as the weight's first size."""
    return {**names, **{name.replace(".weight", ".bias"): sizes.split()[0] for name, sizes in names.items()}}


USUAL_NORMS = norms("input_layernorm", "post_attention_layernorm")
LATE_NORMS = norms("post_attention_layernorm", "post_feedforward_layernorm")
LLAMA = {**ATTENTION, **GATED, **USUAL_NORMS}


@dataclass(frozen=True)
class Uneven:
    """Layers with attention that differ from each other in their sizes or in their tensors.

    Each function takes a config.json with usual names, and raises KeyError if that leaves out a size.

    Attributes:
        kinds: the kind of each layer.
        by_kind: the sizes of a layer's tensors, in words, by kind.
        words: what its own words mean.
        key_widths: how wide the keys are of each layer that has its own.
        unused: what tensors in files begin with that some of the layers do not have.
    """

    kinds: Callable[[Mapping[str, Any]], list[str]]
    by_kind: Mapping[str, Mapping[str, str]]
    words: Callable[[Mapping[str, Any]], dict[str, int]]
    key_widths: Callable[[Mapping[str, Any]], tuple[int, ...]]
    unused: tuple[str, ...]


@dataclass(frozen=True)
class FsdpFamily:
    """Models with one `model_type` in config.json, and where their tensors are.

    Sizes are words: h hidden, q queries, k keys, d a head, f the MLP, v the vocabulary, p the positions. Sums have +.

    Attributes:
        architecture: the class of Transformers, in `architectures` of config.json.
        features: what these models have beyond Llama's.
        layer: the sizes of the tensors of a layer with attention, by name.
        outside: those of the others, without an output layer of the embedding's size.
        layers: where the layers are.
        uneven: how its layers with attention differ from each other, if they do.
        kinds: the kinds of layers that its models have beside attention, of `LAYER_KINDS`.
        shares_base: vLLM can use the trainer's tensors.
        tied: the output layer is the embedding if config.json does not say.
        transposed: weights of linear layers are [inputs, outputs], Transformers' Conv1D.
        usual: its own names in config.json for what other families call by the key.
        defaults: what Transformers takes for what config.json leaves out.
        in_files: what names of tensors begin with in files, and with what in the model, if these differ.
        sees: it takes images too. Its language model alone is trained, on text, and what sees is left out.
        hears: it takes sound too. The same holds.
        if_set: the sizes of a layer's tensors that are there if config.json sets the key.
        outside_if_set: likewise, of those outside of layers.
        linears_outside: linear layers outside of layers, beside the output layer.
        only: what config.json may say, by key, or a tuple of that. Transformers or vLLM computes no other value.
        requires: refuses what else of a config.json with usual names Transformers or vLLM does not compute.
        words: what its own words mean for such a config.json. Raises KeyError if that leaves out a size.
        frozen_experts: likewise, the experts of a family whose experts get no adapter.
        adapted: a part of the names of all linear layers that may have an adapter.
        latent: keys and values are made of one vector for all heads, see `models/glm4.py`.
        quantized: how the weights of its files may be quantized, by `quant_method`. They are read to the job's
            precision, once.
        serves_adapters: vLLM by itself does. If not, lorarl's rollouts are made with an adapter all the same.
    """

    models: str
    architecture: str
    features: str
    layer: Mapping[str, str] = field(default_factory=lambda: LLAMA)
    outside: Mapping[str, str] = field(
        default_factory=lambda: {"model.embed_tokens.weight": "v h", "model.norm.weight": "h"}
    )
    layers: str = "model.layers"
    uneven: Uneven | None = None
    kinds: Collection[str] = ()
    shares_base: bool = True
    tied: bool = True
    transposed: bool = False
    usual: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    in_files: Mapping[str, str] = field(default_factory=dict)
    sees: bool = False
    hears: bool = False
    if_set: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    outside_if_set: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    linears_outside: Collection[str] = ()
    only: Mapping[str, Any] = field(default_factory=dict)
    requires: Callable[[Mapping[str, Any]], None] | None = None
    words: Callable[[Mapping[str, Any]], dict[str, int]] | None = None
    frozen_experts: Callable[[Mapping[str, Any]], FrozenExperts] | None = None
    adapted: str = ""
    latent: bool = False
    quantized: str | None = None
    serves_adapters: bool = True

    def named_in_full(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Return a file's tensors by their names in the whole model, without those that training leaves out.

        GPT-2's own files have those of the decoder alone, and its masks. Gemma 3's have what sees.
        """
        top, _, _ = self.layers.partition(".")
        decoder = {name.partition(".")[2].partition(".")[0] for name in self.outside if name.startswith(f"{top}.")}
        decoder.add(self.layers.partition(".")[2].partition(".")[0])
        shapes = plain_shapes(shapes) if self.quantized else shapes
        shapes = whole_experts(shapes) if self.frozen_experts else shapes
        named = {
            self.in_model(name): shape for name, shape in shapes.items() if name.endswith(".weight") or len(shape) <= 3
        }
        found = {f"{top}.{name}" if name.partition(".")[0] in decoder else name: shape for name, shape in named.items()}
        if not self.sees:
            return found
        language, _, _ = self.layers.rpartition(".")
        return {name: shape for name, shape in found.items() if name.startswith((f"{language}.", "lm_head."))}

    def in_model(self, name: str) -> str:
        """Return a tensor's name in the model."""
        for in_file, in_model in self.in_files.items():
            if name.startswith(in_file):
                return in_model + name.removeprefix(in_file)
        return name

    def shapes(
        self, sizes: Mapping[str, int], kinds: Sequence[str], *, tied: bool, options: Collection[str] = ()
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by its name.

        `kinds` are those of the layers, in their order. `options` are the keys of config.json that are set.
        """
        named = dict(self.outside)
        for option, more in self.outside_if_set.items():
            named.update(more if option in options else {})
        if not tied:
            named["lm_head.weight"] = "v h"
        for number, kind in enumerate(kinds):
            each = self._layer_of(kind, options)
            named.update({f"{self.layers}.{number}.{name}": words for name, words in each.items()})
        return {
            name: tuple(sum(sizes[one] for one in word.split("+")) for word in words.split())
            for name, words in named.items()
        }

    def _layer_of(self, kind: str, options: Collection[str]) -> dict[str, str]:
        """Return the sizes of the tensors of a layer of a kind."""
        each = dict(self.uneven.by_kind[kind] if self.uneven else self.layer)
        for option, more in self.if_set.items():
            each.update(more if option in options else {})
        if other := LAYER_KINDS.get(kind):
            beside = {name: words for name, words in each.items() if not name.startswith("self_attn.")}
            return {**other.tensors, **beside}
        return each
