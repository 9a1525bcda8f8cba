"""Sizes of a base model, read from its own files: config.json and the weights' headers. Nothing here imports torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import is_expert
from lorarl_trainer.lora.targets import (
    QUERY_KEY_VALUE,
    SPLIT_INPUTS,
    Target,
    last_part,
    megatron_linears,
    require_no_experts,
    resolve_targets,
)
from lorarl_trainer.models.families import FAMILIES
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES, sizes_by_word, with_usual_names
from lorarl_trainer.models.layer_kinds import kinds_of, states_of
from lorarl_trainer.models.layer_tensors import ROUTERS, tensor_shapes
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.models.stored_weights import require_no_other_output, require_plain_values, stored_weights
from lorarl_trainer.models.supported_models import (
    has_plain_layers,
    is_known_to_megatron,
    is_served_merged,
    window_of,
)
from lorarl_trainer.storage.downloads import read_model_config

_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size"),
)
"""Sizes in a config.json, by their usual names."""
_ACTIVE = "num_experts_per_tok"
VOCABULARY_MULTIPLE = 64
"""vLLM rounds the vocabulary up to a multiple of this; the trainer does not."""


type _Tensors = Counter[tuple[bool, tuple[int, ...]]]
"""How many tensors there are of each shape. Norms, which are not split, count apart."""


@dataclass(frozen=True)
class LinearSize:
    """A linear layer of the decoder: its widths, and whether tensor parallelism splits its output or its input."""

    name: str
    split_output: bool
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class ModelSizes(ModelShape):
    """What all of a model's files say.

    Attributes:
        shapes: the shape of each tensor, by its Hugging Face name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    @cached_property
    def linears(self) -> tuple[LinearSize, ...]:
        """The linear layers of the decoder."""
        found = []
        for name, shape in self.shapes.items():
            module = name.removesuffix(".weight")
            inside = name.startswith(self.decoder) or module in self.linears_outside
            if inside and module != name and len(shape) == 2 and last_part(module) not in ROUTERS:
                inputs, outputs = shape if self.transposed else reversed(shape)
                found.append(LinearSize(module, last_part(module) not in SPLIT_INPUTS, inputs, outputs))
        return tuple(found)

    @property
    def linear_shapes(self) -> Iterator[tuple[int, int]]:
        """Outputs and inputs of each of them."""
        return ((linear.outputs, linear.inputs) for linear in self.linears)

    def width(self, *names: str) -> int:
        """Return the output width of the decoder's linear layers of these names together, in the largest layer."""
        return sum(self._widths.get(name, 0) for name in names)

    @cached_property
    def normalised(self) -> int:
        """Values of a token that the norms of a layer take in. Attention and the MLP have one each, if not more."""
        layer = f"{self.decoder}0."
        heads = {"q_norm": self.width("q_proj"), "k_norm": self.width("k_proj")}
        named = {name.removesuffix(".weight"): shape for name, shape in self.shapes.items() if name.startswith(layer)}
        norms = [
            heads.get(last_part(name), shape[0])
            for name, shape in named.items()
            if len(shape) == 1 and not name.endswith(".bias")
        ]
        return max(sum(norms), 2 * self.hidden)

    @cached_property
    def of_experts(self) -> int:
        """Parameters of all experts."""
        if frozen := self.frozen_experts:
            return (self.layers - frozen.dense) * frozen.count * 3 * self.hidden * frozen.inner
        return sum(linear.inputs * linear.outputs for linear in self.linears if is_expert(linear.name))

    @property
    def experts_at_work(self) -> tuple[int, int]:
        """A layer's experts that a token is sent to, and how many there are; 0 and 1 for a dense model."""
        if frozen := self.frozen_experts:
            return frozen.active, frozen.count
        return self.active_experts, max(1, self.experts)

    @cached_property
    def inner(self) -> int:
        """The inner size of the MLP, or of an expert."""
        return self.frozen_experts.inner if self.frozen_experts else self.width("up_proj")

    @cached_property
    def of_products(self) -> int:
        """Parameters of the decoder's linear layers, and of all experts."""
        of_linears = sum(linear.inputs * linear.outputs for linear in self.linears)
        return of_linears + (self.of_experts if self.frozen_experts else 0)

    @cached_property
    def multiplied(self) -> int:
        """Those of them with which a token is multiplied, of its own experts only."""
        active, count = self.experts_at_work
        return self.of_products - self.of_experts * (count - active) // count

    def parameters(self, tensor_parallel_size: int, expert_ranks: int = 1) -> int:
        """Return the parameters of the base on one tensor-parallel rank, which has its share of the experts.

        Norms and experts are whole on each rank, and the vocabulary is rounded up.
        """
        moved = self.of_experts // expert_ranks - self.of_experts // tensor_parallel_size
        return self._shares(self._all, tensor_parallel_size) + moved

    def qkv_parameters(self, tensor_parallel_size: int) -> int:
        """Return how many of them differ in layout between Megatron and vLLM: queries, keys and values, with biases."""
        return self._shares(self._qkv, tensor_parallel_size)

    def adapted(self, adapter: AdapterSpec) -> tuple[LinearSize, ...]:
        """Return the linear layers that get an adapter.

        Raises:
            InputError: a name matches none, or only a part of what one adapter would train.
        """
        chosen = {name for target in self.targets(adapter) for name in target.hf_names}
        return tuple(linear for linear in self.linears if linear.name in chosen)

    def targets(self, adapter: AdapterSpec) -> list[Target]:
        """Return the adapters; see `adapted` for the errors."""
        names = [linear.name for linear in self.linears if self.adapted_part in linear.name]
        if self.frozen_experts:
            require_no_experts(adapter.target_modules, names)
        linears = megatron_linears(names)
        return resolve_targets(linears, adapter.type, adapter.target_modules, adapter.exclude_modules)

    @cached_property
    def adapter_sizes(self) -> dict[str, Any]:
        """What `AdapterSize.of` found on this model, by the adapter's fields."""
        return {}

    @cached_property
    def _widths(self) -> dict[str, int]:
        widest: dict[str, int] = {}
        for linear in self.linears:
            name = last_part(linear.name)
            widest[name] = max(widest.get(name, 0), linear.outputs)
        keys = self.key_heads * self.head
        whole = widest.get("qkv_proj") or widest.get("c_attn") or 0
        fused = {"q_proj": whole - 2 * keys, "k_proj": keys, "v_proj": keys} if whole else {}
        if queries := widest.get("q_b_proj"):  # of latent attention
            fused = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        joined = widest.get("gate_up_proj") or widest.get("input_linear") or 0
        inner = joined // 2 or widest.get("fc1") or widest.get("c_fc") or widest.get("w3") or 0
        return {"up_proj": inner, **fused, **widest}

    @cached_property
    def _all(self) -> _Tensors:
        return Counter(("norm" in name, shape) for name, shape in self.shapes.items())

    @cached_property
    def _qkv(self) -> _Tensors:
        shapes = self.shapes.items()
        return Counter(
            (False, shape) for name, shape in shapes if last_part(name.rpartition(".")[0]) in QUERY_KEY_VALUE
        )

    def _shares(self, tensors: _Tensors, ranks: int) -> int:
        return sum(count * self._share(is_norm, shape, ranks) for (is_norm, shape), count in tensors.items())

    def _share(self, is_norm: bool, shape: tuple[int, ...], ranks: int) -> int:
        if is_norm:
            return math.prod(shape)
        if shape[0] == self.vocabulary:
            padded = -(-shape[0] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
            return -(-padded // ranks) * math.prod(shape[1:])
        return -(-math.prod(shape) // ranks)


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """Return what a config.json says of a model's shape. Raises InputError if it leaves out a size."""
    family = FAMILIES.get(str(config.get("model_type")))
    mixture = family.experts if family else None
    other, config = FSDP_FAMILIES.get(str(config.get("model_type"))), with_usual_names(config)
    _require_numbers(config, (*_SIZES, *((*mixture.count, mixture.inner, _ACTIVE) if mixture else ())))
    try:
        heads = config["num_attention_heads"]
        return ModelShape(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            key_heads=config.get("num_key_value_heads") or heads,
            head=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings", other is not None and other.tied)),
            plain_layers=has_plain_layers(config),
            megatron=is_known_to_megatron(config),
            window=window_of(config),
            soft_cap=bool(config.get("attn_logit_softcapping")),
            served_as_it_is=other is None or other.shares_base,
            served_merged=is_served_merged(config),
            decoder=f"{other.layers if other else 'model.layers'}.",
            transposed=other is not None and other.transposed,
            experts=_first_of(config, mixture.count) if mixture else 0,
            active_experts=config[_ACTIVE] if mixture else 0,
            whole_norms=family is not None and family.whole_norms,
            states=tuple(states_of(config)),
            key_widths=other.uneven.key_widths(config) if other and other.uneven else (),
            frozen_experts=other.frozen_experts(config) if other and other.frozen_experts else None,
            sinks=other is not None and "self_attn.sinks" in other.layer,
            sees=other is not None and other.sees,
            linears_outside=other.linears_outside if other else (),
            adapted_part=other.adapted if other else "",
        )
    except KeyError as missing:
        raise _incomplete(missing) from missing


def sizes_of(config: Mapping[str, Any]) -> ModelSizes:
    """Return all sizes of a model of a supported family, which follow from its config.json.

    Raises:
        InputError: it leaves out a size.
    """
    shape = shape_of(config)
    if other := FSDP_FAMILIES.get(str(config["model_type"])):
        try:
            named = with_usual_names(config)
            sizes = sizes_by_word(named, hidden=shape.hidden, key_heads=shape.key_heads, head=shape.head)
        except KeyError as missing:
            raise _incomplete(missing) from missing
        options = [key for key, value in named.items() if value]
        kinds = (other.uneven.kinds if other.uneven else kinds_of)(named)
        shapes = other.shapes(sizes, kinds, tied=shape.tied, options=options)
        return ModelSizes(**vars(shape), shapes=shapes)
    family = FAMILIES[config["model_type"]]
    try:
        heads = config["num_attention_heads"]
        inner = config[family.experts.inner if family.experts else "intermediate_size"]
    except KeyError as missing:
        raise _incomplete(missing) from missing
    shapes = tensor_shapes(family, shape, heads * shape.head, inner)
    return ModelSizes(**vars(shape), shapes=shapes)


def _first_of(config: Mapping[str, Any], names: Sequence[str]) -> int:
    """Return the first of some sizes that a config.json has. Raises KeyError if it has none."""
    size: int = next((config[name] for name in names if config.get(name)), None) or config[names[-1]]
    return size


def read_model_sizes(folder: Path) -> ModelSizes:
    """Read the sizes of the model in `folder`.

    Raises:
        InputError: it has no weights in safetensors format, its files contradict each other, or they are not of the
            model that config.json describes.
    """
    stored = stored_weights(folder)
    require_plain_values(stored)
    shapes = {name: tensor.stored.shape for name, tensor in stored.items()}
    config = read_model_config(folder)
    if family := FSDP_FAMILIES.get(str(config.get("model_type"))):
        shapes = family.named_in_full(shapes)
    shape, described = shape_of(config), sizes_of(config).shapes
    if config.get("num_nextn_predict_layers"):
        # Layers that predict further tokens come after the others. Neither side loads them.
        shapes = {name: size for name, size in shapes.items() if _number(shape, name) < shape.layers}
    if family and family.uneven:
        # Files have them also for layers that do not use them.
        beginnings = family.uneven.unused
        shapes = {name: size for name, size in shapes.items() if name in described or not _of(beginnings, name)}
    if fault := _other_model(described, shapes) or _other_depth(shape, shapes) or _lacks(shape, described, shapes):
        raise InputError(
            "spec.model.uri",
            f"{folder}, {fault}",
            "weights of the model that config.json describes",
            "Copy or download the model again. Its config.json may be that of another model.",
        )
    if shape.tied:
        require_no_other_output(stored)
    # A tied model may have been saved with its output layer.
    kept = {name: size for name, size in shapes.items() if not (shape.tied and name == "lm_head.weight")}
    return ModelSizes(**vars(shape), shapes=kept)


def _number(shape: ModelShape, name: str) -> int:
    """Return the number of a tensor's layer, -1 outside of layers."""
    number = name.removeprefix(shape.decoder).partition(".")[0]
    return int(number) if name.startswith(shape.decoder) and number.isdecimal() else -1


def _of(beginnings: tuple[str, ...], name: str) -> bool:
    """Return whether a tensor's name in its layer begins with one of these."""
    return name.partition(".layers.")[2].partition(".")[2].startswith(beginnings)


def _other_model(described: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return how weights contradict a config.json, None if they do not."""
    for name, shape in there.items():
        if name in described and shape != described[name]:
            return f"whose {name} has the shape {list(shape)}, where config.json means {list(described[name])}"
        # Old files also have tables of rotary positions, which follow from config.json.
        if name not in described and ".layers." in name and name.endswith((".weight", ".bias")):
            return f"whose weights have {name}, which the model of config.json does not have"
    return None


def _other_depth(shape: ModelShape, there: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return how the number of layers in weights contradicts a config.json, None if it does not."""
    layers = 1 + max((_number(shape, name) for name in there), default=-1)
    if not layers or layers == shape.layers:
        return None
    return f"whose weights have {layers} layers, where config.json means {shape.layers}"


def _lacks(
    shape: ModelShape, described: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]
) -> str | None:
    """Return which weights of a config.json are missing, None if all are there.

    Transformers may load a weight from another name, so those that only it trains are checked when they are loaded.
    """
    missing = [name for name in described if name not in there]
    return f"whose files lack {missing[0]} ({len(missing)} in all)" if missing and shape.megatron else None


def _require_numbers(config: Mapping[str, Any], names: Iterable[str]) -> None:
    """Require that each size is a whole number above 0, if it is there.

    Raises:
        InputError: naming the first that is not.
    """
    for name in names:
        value = config.get(name)
        if value is not None and (type(value) is not int or value < 1):
            got = f"a config.json with {name}: {value!r}"
            raise InputError("spec.model.uri", got, "a whole number above 0", "Copy or download the model again.")


def _incomplete(missing: KeyError) -> InputError:
    return InputError(
        "spec.model.uri",
        f"a config.json without {missing.args[0]}",
        "the configuration of a language model with attention in every layer",
        "Copy the model again, or choose another one.",
    )
