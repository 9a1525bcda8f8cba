"""Which linear layers get an adapter: `adapter.targetModules` resolved against the model.

Names may be Hugging Face's (q_proj), Megatron's (linear_qkv; linear_q for one part of it), the end of a full name of
either (self_attn.q_proj, layers.0.self_attn.q_proj), as in PEFT, or wildcards over the full names. Nothing here imports
torch.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.experts import EXPERTS, is_expert

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Projection:
    """One linear layer of a decoder layer as each side names it.

    Attributes:
        hf: the last part of its Hugging Face name.
        layer: the Megatron layer that it is, or is a part of.
        part: which part of that; empty where it is the whole layer.
        canonical: what Megatron-Bridge's CanonicalLoRA calls it.
    """

    hf: str
    layer: str
    part: str
    canonical: str


PROJECTIONS = (
    Projection("q_proj", "linear_qkv", "q", "linear_q"),
    Projection("k_proj", "linear_qkv", "k", "linear_k"),
    Projection("v_proj", "linear_qkv", "v", "linear_v"),
    Projection("o_proj", "linear_proj", "", "linear_proj"),
    Projection("gate_proj", "linear_fc1", "gate", "linear_fc1_gate"),
    Projection("up_proj", "linear_fc1", "up", "linear_fc1_up"),
    Projection("down_proj", "linear_fc2", "", "linear_fc2"),
    # Mixtral's
    Projection("w1", "linear_fc1", "gate", "linear_fc1_gate"),
    Projection("w3", "linear_fc1", "up", "linear_fc1_up"),
    Projection("w2", "linear_fc2", "", "linear_fc2"),
)
_BY_HF_NAME = {projection.hf: projection for projection in PROJECTIONS}
_CANONICAL = {projection.part: projection.canonical for projection in PROJECTIONS if projection.part}
QUERY_KEY_VALUE = tuple(projection.hf for projection in PROJECTIONS if projection.layer == "linear_qkv")
SPLIT_INPUTS = frozenset(projection.hf for projection in PROJECTIONS if not projection.part)
"""Layers whose inputs tensor parallelism splits; it splits the outputs of all others."""

SHARED_EXPERT_GATE = "shared_expert_gate"
"""The gate of a shared expert's output: vLLM 0.26 reads an adapter on it, and computes without it."""
NEVER_ADAPTED = (
    *("lm_head", "output_layer", "score"),
    *("embed_tokens", "word_embeddings", "embedding"),
    *("router", "gate", SHARED_EXPERT_GATE),
    *("norm", "final_layernorm", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm"),
)
"""The last parts of names that never get an adapter, of either side: excluding them changes nothing and is right."""


_OF_EXPERTS = frozenset(
    {"mlp", "experts", "gate_up_proj", "gate_proj", "up_proj", "down_proj", "linear_fc1", "linear_fc2"}
)
"""Parts of the names of experts' layers."""


@dataclass(frozen=True)
class Linear:
    """A linear layer of the Megatron model.

    Attributes:
        name: its full name.
        hf: the full names of the Hugging Face layers that it is made of, by part; by '' if it is one.
    """

    name: str
    hf: Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """One adapter: the name that Megatron-Bridge takes, and the Hugging Face layers that it changes."""

    name: str
    hf_names: tuple[str, ...]


@dataclass(frozen=True)
class _Candidate:
    target: Target
    aliases: tuple[str, ...]  # full Megatron names that mean the whole adapter


def resolve_targets(
    linears: Sequence[Linear], adapter_type: str, target_modules: Sequence[str], exclude_modules: Sequence[str]
) -> list[Target]:
    """Return the adapters to make, in the model's order.

    Exclusions may also name what never gets an adapter (`NEVER_ADAPTED`).

    Raises:
        InputError: a name matches no layer, or only a part of a fused layer for which `lora` has one adapter, or no
            module is left after the exclusions.
    """
    candidates = [c for linear in linears for c in _candidates(linear, adapter_type)]
    included = _select(candidates, target_modules, "spec.adapter.targetModules")
    excluded = _select(candidates, exclude_modules, "spec.adapter.excludeModules", NEVER_ADAPTED)
    targets = [
        c.target for c, is_in, is_out in zip(candidates, included, excluded, strict=True) if is_in and not is_out
    ]
    if not targets:
        raise InputError(
            "spec.adapter.excludeModules",
            str(list(exclude_modules)),
            "at least one module left to train",
            "Exclude fewer modules.",
        )
    return targets


def excluded_names(
    linears: Sequence[Linear], adapter_type: str, target_modules: Sequence[str], exclude_modules: Sequence[str]
) -> list[str]:
    """Return the full Hugging Face names of the layers that only `exclude_modules` keeps from getting an adapter."""
    if not exclude_modules:
        return []
    wanted, kept = (
        [
            name
            for target in resolve_targets(linears, adapter_type, target_modules, left_out)
            for name in target.hf_names
        ]
        for left_out in ((), exclude_modules)
    )
    return [name for name in wanted if name not in set(kept)]


def require_no_experts(target_modules: Sequence[str], linears: Iterable[str]) -> None:
    """Refuse names of experts' layers, for a model whose experts stay as they are.

    `linears` are the full names of its linear layers, of which a shared expert may have some.

    Raises:
        InputError: naming the first.
    """
    there = list(linears)
    for pattern in target_modules:
        named = _OF_EXPERTS & set(pattern.replace("*", "").split("."))
        if named and not any(_matches(pattern, name) for name in there):
            raise InputError(
                "spec.adapter.targetModules",
                repr(pattern),
                f"linear layers ({', '.join(last_parts(there))}): the experts of this model stay as they are, since "
                "vLLM 0.26 takes no adapter on them on a CPU, and none on a GPU was compared",
                f"Use [{ALL_LINEAR}], or name some of these.",
            )


def served_names(targets: Sequence[Target]) -> list[str]:
    """Return the names by which vLLM knows the layers that the targets change: all experts of a layer are one."""
    return list(dict.fromkeys(EXPERTS if is_expert(n) else last_part(n) for t in targets for n in t.hf_names))


def last_parts(full_names: Iterable[str]) -> list[str]:
    """Return the distinct last parts of full names, in their order."""
    return list(dict.fromkeys(map(last_part, full_names)))


def shortest_names(layers: Collection[str], all_layers: Collection[str] | None) -> list[str]:
    """Return the last parts of the layers' names where those mean the same layers, and otherwise their full names.

    `all_layers`: the model's linear layers; None if these are all of a name.
    """
    short = set(map(last_part, layers))
    everywhere = all_layers is None or {layer for layer in all_layers if last_part(layer) in short} == set(layers)
    return sorted(short if everywhere else layers)


def megatron_linears(hf_names: Iterable[str]) -> list[Linear]:
    """Return the linear layers that Megatron makes of Llama's, given the full names of those, in their order."""
    parts: dict[str, dict[str, str]] = {}
    for name in hf_names:
        parent, _, last = name.rpartition(".")
        known = _BY_HF_NAME.get(last)
        layer, part = (known.layer, known.part) if known else (last, "")
        whole = f"{parent}.{layer}".replace("model.layers.", "decoder.layers.").replace(
            ".self_attn.", ".self_attention."
        )
        parts.setdefault(whole, {})[part] = name
    return [Linear(name, found) for name, found in parts.items()]


def last_part(full_name: str) -> str:
    """Return what follows the last dot of a name."""
    return full_name.rpartition(".")[2]


def _candidates(linear: Linear, adapter_type: str) -> list[_Candidate]:
    if adapter_type == "lora" or len(linear.hf) == 1:
        return [_Candidate(Target(linear.name, tuple(linear.hf.values())), (linear.name,))]
    parent = linear.name.rpartition(".")[0]
    names = {part: f"{parent}.{_CANONICAL[part]}" for part in linear.hf}
    return [
        _Candidate(Target(names[part], (hf_name,)), (names[part], linear.name)) for part, hf_name in linear.hf.items()
    ]


def _select(
    candidates: Sequence[_Candidate], patterns: Sequence[str], field: str, may_name: Collection[str] = ()
) -> list[bool]:
    """Return for each candidate whether the patterns, taken together, name it.

    A pattern that names no candidate is refused, unless it names one of `may_name`.
    """
    named: list[set[str]] = [set() for _ in candidates]
    for pattern in patterns:
        found = False
        for candidate, names in zip(candidates, named, strict=True):
            whole = pattern == ALL_LINEAR or any(_matches(pattern, alias) for alias in candidate.aliases)
            matched = [name for name in candidate.target.hf_names if whole or _matches(pattern, name)]
            names.update(matched)
            found = found or bool(matched)
        if not found and not _names_one(pattern, may_name):
            raise _no_such_layer(candidates, pattern, field)
    for candidate, names in zip(candidates, named, strict=True):
        if names and len(names) < len(candidate.target.hf_names):
            raise _only_a_part(candidate.target, names, field)
    return [bool(names) for names in named]


def _no_such_layer(candidates: Sequence[_Candidate], pattern: str, field: str) -> InputError:
    there = sorted({last_part(name) for c in candidates for name in (*c.target.hf_names, *c.aliases)})
    if pattern in NEVER_ADAPTED:
        return InputError(field, repr(pattern), f"a layer that may have an adapter ({', '.join(there)})", "Remove it.")
    near = difflib.get_close_matches(pattern, there, n=1)
    hint = (
        f"Did you mean {near[0]}?"
        if near
        else "Use [all-linear], one of these names, or a wildcard over full names (*.layers.0.*)."
    )
    return InputError(field, repr(pattern), f"a linear layer of this model ({', '.join(there)})", hint)


def _only_a_part(target: Target, names: set[str], field: str) -> InputError:
    """Return the error for a part of a fused layer: `lora` has one adapter for all parts and would train them all."""
    parts = ", ".join(last_part(name) for name in target.hf_names)
    return InputError(
        field,
        f"{', '.join(sorted(last_part(name) for name in names))} alone",
        f"all of {parts}, which adapter.type lora trains with one adapter, {last_part(target.name)}",
        f"Name {last_part(target.name)} instead, or set spec.adapter.type: canonical_lora.",
    )


def _matches(pattern: str, full_name: str) -> bool:
    return f".{full_name}".endswith(f".{pattern}") or fnmatchcase(full_name, pattern)


def _names_one(pattern: str, last_parts: Collection[str]) -> bool:
    """Return whether a pattern's last part is one of these, and more than a bare wildcard."""
    last = last_part(pattern)
    return bool(last.strip("*?")) and any(fnmatchcase(name, last) for name in last_parts)


def require_vocabulary_to_split(vocabulary: int, ranks: int) -> None:
    """Refuse a vocabulary that the tensor-parallel ranks cannot share.

    Raises:
        InputError: it is not a multiple of their number.
    """
    if vocabulary % ranks:
        raise InputError(
            "spec.trainer.tensorParallelSize",
            f"{ranks} for a model with a vocabulary of {vocabulary:,}",
            "a divisor of the vocabulary, which the ranks share",
            "Set it to 1, or resize the model's embeddings to a multiple of 64.",
        )
