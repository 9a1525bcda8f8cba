"""Gemma 4, dense: heads of two sizes, layers that take the keys of an earlier one, and embeddings for each layer.

Its kinds of layers are those of `layer_types` in config.json, with a prefix: `shared` for a layer without keys and
values, `alike` for one whose values are its keys. Words of sizes beside those of `FsdpFamily`: Q, K and D
are q, k and d of a layer that sees everything, F the MLP of a layer with shared keys, e the embedding for one layer, E
that of all layers, and w the vocabulary of these embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.fsdp_family import HEAD_NORMS, LLAMA, FsdpFamily, Uneven, norms

_SHARED, _ALIKE, _FULL = "shared", "alike", "full_attention"
_WIDE = {"q": "Q", "k": "K", "d": "D", "f": "F"}
_OWN_KEYS = ("self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.")
_BY_LAYER = {
    "per_layer_input_gate.weight": "e h",
    "per_layer_projection.weight": "h e",
    "post_per_layer_input_norm.weight": "h",
}
_ALL_LAYERS = {
    "embed_tokens_per_layer.weight": "w E",
    "per_layer_model_projection.weight": "E h",
    "per_layer_projection_norm.weight": "e",
}
_SLIDING = {
    **LLAMA,
    **HEAD_NORMS,
    **norms("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "layer_scalar": "one",
}


def _resized(layer: Mapping[str, str], *words: str) -> dict[str, str]:
    """Return the sizes of a layer's tensors, of which these words are those of `_WIDE`."""
    return {
        name: " ".join(_WIDE[word] if word in words else word for word in sizes.split())
        for name, sizes in layer.items()
    }


def _without_keys(layer: Mapping[str, str]) -> dict[str, str]:
    return {name: sizes for name, sizes in layer.items() if not name.startswith(_OWN_KEYS)}


_GLOBAL = _resized(_SLIDING, "q", "k", "d")
_KINDS = {
    "sliding_attention": _SLIDING,
    _FULL: _GLOBAL,
    f"{_ALIKE} {_FULL}": {name: sizes for name, sizes in _GLOBAL.items() if "v_proj" not in name},
    f"{_SHARED} sliding_attention": _resized(_without_keys(_SLIDING), "f"),
    f"{_SHARED} {_FULL}": _resized(_without_keys(_GLOBAL), "f"),
}


def kinds(config: Mapping[str, Any]) -> list[str]:
    """Return the kind of each layer."""
    count = config["num_hidden_layers"]
    usual = ["sliding_attention" if (number + 1) % 6 and number + 1 < count else _FULL for number in range(count)]
    named = list(config.get("layer_types") or usual)[:count]
    first = len(named) - (config.get("num_kv_shared_layers") or 0)
    alike = config.get("attention_k_eq_v")
    own = [f"{_ALIKE} {kind}" if alike and kind == _FULL else kind for kind in named[:first]]
    return own + [f"{_SHARED} {kind}" for kind in named[first:]]


def words(config: Mapping[str, Any]) -> dict[str, int]:
    """Return what its own words mean for a config.json with usual names. Raises KeyError if it leaves out a size."""
    head, embedded = _global_head(config), config["hidden_size_per_layer_input"] or 0
    return {
        "one": 1,
        "Q": config["num_attention_heads"] * head,
        "K": _global_keys(config),
        "D": head,
        "F": config["intermediate_size"] * (2 if config.get("use_double_wide_mlp") else 1),
        "e": embedded,
        "E": embedded * config["num_hidden_layers"],
        "w": config["vocab_size_per_layer_input"],
    }


def _global_head(config: Mapping[str, Any]) -> int:
    return int(config["global_head_dim"] or config["head_dim"])


def _global_keys(config: Mapping[str, Any]) -> int:
    """Return how wide the keys are of a layer that sees everything."""
    name = "num_global_key_value_heads" if config.get("attention_k_eq_v") else "num_key_value_heads"
    if config[name] is None:
        raise KeyError(name)
    return int(config[name]) * _global_head(config)


def key_widths(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how wide the keys are of each layer that has its own. Raises KeyError if it leaves out a size."""
    of_kind = {_FULL: _global_keys(config), "sliding_attention": config["num_key_value_heads"] * config["head_dim"]}
    return tuple(of_kind[kind.rpartition(" ")[2]] for kind in kinds(config) if not kind.startswith(_SHARED))


def values_are_keys(language: Any, module: str) -> bool:
    """Return whether a layer has one projection for keys and values.

    `language` is a language model's configuration as Transformers has it, `module` the name of a module of the layer.
    """
    number = module.partition(".layers.")[2].partition(".")[0]
    return bool(getattr(language, "attention_k_eq_v", False)) and language.layer_types[int(number)] == _FULL


def _family(models: str, architecture: str, features: str, decoder: str, **more: Any) -> FsdpFamily:
    return FsdpFamily(
        models,
        architecture,
        features,
        _SLIDING,
        {f"{decoder}.embed_tokens.weight": "v h", f"{decoder}.norm.weight": "h"},
        layers=f"{decoder}.layers",
        uneven=Uneven(kinds, _KINDS, words, key_widths, _OWN_KEYS),
        if_set={"hidden_size_per_layer_input": _BY_LAYER},
        outside_if_set={
            "hidden_size_per_layer_input": {f"{decoder}.{name}": sizes for name, sizes in _ALL_LAYERS.items()}
        },
        linears_outside=(f"{decoder}.per_layer_model_projection",),
        defaults={
            "head_dim": 256,
            "global_head_dim": 512,
            "num_global_key_value_heads": None,
            "hidden_size_per_layer_input": 256,
            "vocab_size": 262_144,
            "vocab_size_per_layer_input": 262_144,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
        },
        only={
            "attention_bias": False,
            "hidden_activation": "gelu_pytorch_tanh",
            "use_bidirectional_attention": (None, "vision"),
        },
        **more,
    )


GEMMA_4 = {
    "gemma4": _family(
        "Gemma 4, dense (E2B, E4B, 31B), on text",
        "Gemma4ForConditionalGeneration",
        "heads of two sizes, windows, shared keys, embeddings for each layer, in a model that also takes images",
        "model.language_model",
        sees=True,
        hears=True,
    ),
    "gemma4_text": _family(
        "Gemma 4, dense, its text part alone",
        "Gemma4ForCausalLM",
        "as `gemma4`",
        "model",
    ),
}
