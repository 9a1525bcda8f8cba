"""Kinds of decoder layers beside attention: all that a family has to know of them stands here.

Where a layer keeps a state in the place of keys and values, it sees one sequence at a time: the trainer lets it see
those of its packed rows (`backends/fsdp/recurrent.py`), and vLLM keeps its state beside the KV cache
(`engine/vllm/kv_blocks.py`). Kinds with the same rule differ in the names and sizes of their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lorarl_trainer.errors import InputError

ATTENTION_KINDS = ("full_attention", "sliding_attention")
"""Values of `layer_types` in config.json for layers with attention."""
Rule = Literal["gated_delta", "short_convolution", "state_space"]
"""What a layer that keeps a state computes. Trainer and engine choose their code by it."""


@dataclass(frozen=True)
class State:
    """What a layer with a state keeps: numbers of values.

    Attributes:
        layers: what people call layers of this kind.
        inputs: of a sequence, however long it is: the last ones of a convolution, in the model's precision.
        recurrent: of a sequence, in fp32.
        single: of each token of a sequence, until the backward pass, in fp32.
        plain: likewise, in the model's precision.
        again: of each token, in fp32, while the layer is computed again for its backward pass.
    """

    layers: str
    inputs: int
    recurrent: int
    single: int
    plain: int
    again: int


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer.

    Attributes:
        rule: what it computes.
        mixer: its module that stands in the place of attention, and keeps the state.
        tensors: the sizes of that module's tensors by name in the layer, in words, see `FsdpFamily`.
        words: what its own words mean for a config.json. Raises KeyError if that leaves out a size.
        state: what it keeps of a sequence. The same holds.
        together: its linear layers that vLLM 0.26 takes adapters for only together.
        products: its neighbours that vLLM computes in one product, in its order, and the parts that vLLM counts there.
        made_of: tensors that vLLM has in another form: what each is made of, by the last parts of both names.
    """

    rule: Rule
    mixer: str
    tensors: Mapping[str, str]
    words: Callable[[Mapping[str, Any]], dict[str, int]]
    state: Callable[[Mapping[str, Any]], State]
    together: frozenset[str]
    products: Mapping[tuple[str, ...], int]
    made_of: Mapping[str, tuple[str, Callable[[Any], Any]]] = field(default_factory=dict)


def _delta_net_words(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        "keys": config["linear_num_key_heads"] * config["linear_key_head_dim"],
        "values": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "heads": config["linear_num_value_heads"],
        "head": config["linear_value_head_dim"],
        "kernel": config["linear_conv_kernel_dim"],
        "one": 1,
    }


def _delta_net_state(config: Mapping[str, Any]) -> State:
    words, key, value = _delta_net_words(config), config["linear_key_head_dim"], config["linear_value_head_dim"]
    # Counted in `backends/fsdp/delta_rule.py`: six matrices of a chunk of 64 tokens, and a state for each chunk, twice.
    rule = words["heads"] * (11 * key + 4 * value + 2 * key * value // 64 + 6 * 64 + 4)
    return State(
        "delta nets",
        inputs=(2 * words["keys"] + words["values"]) * (words["kernel"] - 1),
        recurrent=words["values"] * key,
        single=words["heads"],
        plain=2 * words["heads"] * key + 2 * words["values"] + words["heads"],
        again=rule + 4 * words["values"],
    )


def _short_convolution_words(config: Mapping[str, Any]) -> dict[str, int]:
    return {"taps": config["conv_L_cache"], "one": 1}


def _short_convolution_state(config: Mapping[str, Any]) -> State:
    # Kept are the three outputs of in_proj. The convolution's, and out_proj's input, are as wide as the queries and
    # the output of attention, which plans count in every layer.
    hidden, before = config["hidden_size"], config["conv_L_cache"] - 1
    return State(
        "short convolutions",
        inputs=hidden * before,
        recurrent=0,
        single=0,
        plain=3 * hidden,
        again=(before + 2) * hidden,
    )


def _mamba_words(config: Mapping[str, Any]) -> dict[str, int]:
    return {
        "inner": config["mamba_expand"] * config["hidden_size"],
        "states": config["mamba_n_groups"] * config["mamba_d_state"],
        "heads": config["mamba_n_heads"],
        "taps": config["mamba_d_conv"],
        "one": 1,
    }


def _mamba_state(config: Mapping[str, Any]) -> State:
    words, of_value = _mamba_words(config), config["mamba_d_state"]
    inner, states, heads = words["inner"], words["states"], words["heads"]
    convolved = inner + 2 * states
    # Counted in `kernels/state_space.py`: copies of the heads' values, three matrices of a chunk of 64 tokens, and a
    # state for each chunk, twice. Of the convolution, its sum and its output. At the sizes of Granite 4.0 H 1B it is
    # what autograd keeps.
    scan = 7 * inner + heads * (3 * 64 + 4) + 2 * inner * of_value // 64 + 4 * states
    return State(
        "Mamba layers",
        inputs=convolved * (words["taps"] - 1),
        recurrent=inner * of_value,
        single=0,
        # Kept are the outputs of in_proj, and the input of out_proj. The gate and that are as wide as the queries and
        # the norm of the first layer, which plans count in every layer.
        plain=convolved + heads,
        again=scan + 2 * convolved,
    )


def _decay(logarithm: Any) -> Any:
    """Return a tensor of vLLM's, given the one that files have."""
    return -logarithm.float().exp()


LAYER_KINDS: Mapping[str, LayerKind] = {
    # S. Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta Rule" (arXiv:2412.06464)
    "linear_attention": LayerKind(
        "gated_delta",
        "linear_attn",
        {
            "linear_attn.in_proj_qkv.weight": "keys+keys+values h",
            "linear_attn.in_proj_z.weight": "values h",
            "linear_attn.in_proj_b.weight": "heads h",
            "linear_attn.in_proj_a.weight": "heads h",
            "linear_attn.conv1d.weight": "keys+keys+values one kernel",
            "linear_attn.A_log": "heads",
            "linear_attn.dt_bias": "heads",
            "linear_attn.norm.weight": "head",
            "linear_attn.out_proj.weight": "h values",
        },
        _delta_net_words,
        _delta_net_state,
        frozenset({"in_proj_qkv", "in_proj_z"}),
        {("in_proj_qkv", "in_proj_z"): 4, ("in_proj_b", "in_proj_a"): 2},
    ),
    # LFM2's: a gate, a convolution over a few tokens, and another gate
    "conv": LayerKind(
        "short_convolution",
        "conv",
        {
            "conv.in_proj.weight": "h+h+h h",
            "conv.conv.weight": "h one taps",
            "conv.out_proj.weight": "h h",
        },
        _short_convolution_words,
        _short_convolution_state,
        frozenset(),
        {},
    ),
    # T. Dao and A. Gu, "Transformers are SSMs" (arXiv:2405.21060): Mamba-2, as Granite 4.0 H names it
    "mamba": LayerKind(
        "state_space",
        "mamba",
        {
            "mamba.in_proj.weight": "inner+inner+states+states+heads h",
            "mamba.conv1d.weight": "inner+states+states one taps",
            "mamba.conv1d.bias": "inner+states+states",
            "mamba.A_log": "heads",
            "mamba.D": "heads",
            "mamba.dt_bias": "heads",
            "mamba.norm.weight": "inner",
            "mamba.out_proj.weight": "h inner",
        },
        _mamba_words,
        _mamba_state,
        frozenset(),
        {},
        {"A": ("A_log", _decay)},
    ),
}
"""By their value of `layer_types` in config.json."""


def kinds_of(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer, given a config.json with usual names. Raises KeyError without their number."""
    layers = config["num_hidden_layers"]
    if named := config.get("layer_types"):
        return list(named)[:layers]
    if (attention := config.get("full_attn_idxs")) is not None:
        return ["full_attention" if number in attention else "conv" for number in range(layers)]
    every = config.get("full_attention_interval")
    return ["linear_attention" if every and (number + 1) % every else "full_attention" for number in range(layers)]


def require_together(adapted: Iterable[str]) -> None:
    """Refuse adapters on a part of what vLLM takes only together, given the names of the layers that have one.

    Raises:
        InputError: naming the layers.
    """
    by_parent: dict[str, set[str]] = {}
    for name in adapted:
        parent, _, last = name.rpartition(".")
        by_parent.setdefault(parent, set()).add(last)
    for kind in LAYER_KINDS.values():
        names = sorted(kind.together)
        for parent, found in by_parent.items():
            if kind.together & found and kind.together - found:
                raise InputError(
                    "spec.adapter.targetModules",
                    f"{', '.join(sorted(kind.together & found))} alone, in {parent}",
                    f"{' and '.join(names)}, which vLLM 0.26 serves only together",
                    f"Name both, or exclude both with spec.adapter.excludeModules: [{', '.join(names)}].",
                )


def keeps_states(language: Any) -> bool:
    """Return whether a language model's configuration, as Transformers has it, has layers that keep a state."""
    return any(kind in LAYER_KINDS for kind in getattr(language, "layer_types", None) or ())


def computes(language: Any, rule: Rule) -> bool:
    """Return whether such a configuration has layers with this rule."""
    kinds = (LAYER_KINDS.get(kind) for kind in getattr(language, "layer_types", None) or ())
    return any(kind is not None and kind.rule == rule for kind in kinds)


def has_sinks(language: Any) -> bool:
    """Return whether attention has sinks in a language model with such a configuration. None says so of itself."""
    return bool(language.model_type == "gpt_oss")


def rotates_separate_heads(language: Any) -> bool:
    """Return whether vLLM has a dimension for heads where it gives such a model's queries their positions.

    It has one in latent attention, and in LFM2.
    """
    return bool(getattr(language, "kv_lora_rank", None)) or bool(language.model_type == "lfm2")


def shares_keys(language: Any) -> bool:
    """Return whether a language model's configuration has layers that take the keys and values of earlier ones."""
    return bool(getattr(language, "num_kv_shared_layers", None))


def states_of(config: Mapping[str, Any]) -> list[State]:
    """Return what the layers that keep a state keep of a sequence; see `kinds_of`."""
    return [LAYER_KINDS[kind].state(config) for kind in kinds_of(config) if kind in LAYER_KINDS]
