"""Which base models the trainer takes, judged by config.json: before anything is downloaded or loaded.

A config.json may ask for something that Megatron-Bridge does not follow, mostly without a word. Such a model is
refused. Reinforcement learning would find out, because vLLM generates with the whole configuration and its
log-probabilities are compared with the trainer's. Supervised fine-tuning has nothing to compare with: it would train
the adapter on another function than the one it is served on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.families import FAMILIES, SUPPORTED, BackendName, Family
from lorarl_trainer.models.fsdp_families import FSDP_FAMILIES, with_usual_names
from lorarl_trainer.models.fsdp_family import FsdpFamily
from lorarl_trainer.models.layer_kinds import ATTENTION_KINDS
from lorarl_trainer.models.mixtures import require_known_mixture
from lorarl_trainer.models.refused_families import REFUSED, REFUSED_WITH, refused
from lorarl_trainer.models.rotary import require_known_rope, require_same_positions, rope_of, rope_type

_OTHER_INPUTS = ("vision_config", "audio_config", "text_config", "thinker_config")
_SEEING: tuple[str, ...] = ("vision_config", "text_config")
"""What a model that also takes images has, if its language model is trained alone."""
_STATE_SPACE = ("mamba_d_state", "mamba_d_ssm", "ssm_cfg", "ssm_state_size", "state_size", "hybrid_override_pattern")
_ACTIVATIONS = ("silu", "swish")
_MORE_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
_NOT_MEGATRON = "trainer.backend megatron does not train it"
_ANOTHER = f"Choose a model of a supported family ({SUPPORTED})."


def require_supported(
    config: Mapping[str, Any], longest: int, *, rollouts: bool = True, backend: BackendName | None = None
) -> None:
    """Refuse a base model that the trainer does not know, or would take for another function.

    Args:
        config: the content of config.json.
        longest: tokens of the job's longest sequence. A window that is at least as long cuts nothing off.
        rollouts: whether vLLM generates such sequences.
        backend: which backend trains; None if the model may choose it.

    Raises:
        InputError: it names what config.json asks for, what was expected and the fix.
    """
    _require_no_refused_family(config)
    config = with_usual_names(config)
    _require_plain_weights(config)
    _require_language_model(config)
    require_known_mixture(config)
    family = _family(config, backend)
    if isinstance(family, Family):
        _require_plain_layers(family, config)
        if backend == "megatron" or family.experts:
            _require_wide_window(family, config, longest)
            require_known_rope(family, config)
    _require_known_values(family.only, config)
    if isinstance(family, FsdpFamily) and family.requires:
        family.requires(config)
    require_same_positions(config, longest)
    if rollouts:
        _require_positions(config, longest)
        _require_one_window(config)


def has_plain_layers(config: Mapping[str, Any]) -> bool:
    """Return whether a model's layers are Llama's, which `backends/megatron/fused_layer.py` computes in a few steps."""
    return config.get("model_type") in FAMILIES and config.get("hidden_act", "silu") in _ACTIVATIONS


def family_of(config: Mapping[str, Any]) -> Family | FsdpFamily:
    """Return the family of a model that `require_supported` has taken."""
    kind = config["model_type"]
    return FAMILIES.get(kind) or FSDP_FAMILIES[kind]


def is_served_merged(config: Mapping[str, Any]) -> bool:
    """Return whether vLLM by itself serves a model's adapters only merged into it."""
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return False
    # Where values are keys, vLLM has two projections for them, and gives the adapter to the keys' alone.
    return not family.serves_adapters or bool(with_usual_names(config).get("attention_k_eq_v"))


def is_known_to_megatron(config: Mapping[str, Any]) -> bool:
    """Return whether Megatron trains such models, apart from a window."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return False
    try:
        require_known_rope(family, config)
    except InputError:
        return False
    return True


def window_of(config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a model's attention sees, itself included; None for all."""
    family = FAMILIES.get(str(config.get("model_type")))
    if family is not None:
        return _window(family, config)
    config = with_usual_names(config)
    slides = "sliding_attention" in (config.get("layer_types") or ["sliding_attention"])
    return int(config["sliding_window"]) if slides and config.get("sliding_window") else None


def _require_no_refused_family(config: Mapping[str, Any]) -> None:
    kind, named = str(config.get("model_type")), with_usual_names(config)
    found_in = {*(key for key, value in named.items() if value), *(named.get("layer_types") or ())}
    variants = (one for (family, what), one in REFUSED_WITH.items() if family == kind and what in found_in)
    if found := REFUSED.get(kind) or next(variants, None):
        raise refused(
            f"model_type {kind} ({found.models}): {found.why}",
            f"a model of a supported family ({SUPPORTED}, and those that docs/models.md lists)",
            f"The nearest is {found.instead}.",
        )


def _require_plain_weights(config: Mapping[str, Any]) -> None:
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        if family is not None and family.quantized == method:
            return
        raise refused(
            f"weights quantized by {method}", "weights in bf16, fp16 or fp32", "Name the model that was quantized."
        )


def _require_language_model(config: Mapping[str, Any]) -> None:
    family = FSDP_FAMILIES.get(str(config.get("model_type")))
    known = _SEEING if family is not None and family.sees else ()
    known += ("audio_config",) if family is not None and family.hears else ()
    if parts := [name for name in _OTHER_INPUTS if config.get(name) and name not in known]:
        raise refused(
            f"{', '.join(parts)}: a model of images, sound or several parts", "a model of text alone", _ANOTHER
        )
    if config.get("is_encoder_decoder"):
        raise refused("is_encoder_decoder: true", "a decoder", _ANOTHER)
    taken = {*ATTENTION_KINDS, *(family.kinds if family is not None else ())}
    kinds = sorted({str(kind) for kind in config.get("layer_types") or ()} - taken)
    if family is None:  # those of a known family say so in `layer_types`
        kinds += [name for name in _STATE_SPACE if config.get(name)]
    if kinds:
        raise refused(f"{', '.join(kinds)}: layers without full attention", "attention in every layer", _ANOTHER)
    if config.get("kv_lora_rank") and not (family is not None and family.latent):
        raise refused(
            f"kv_lora_rank {config['kv_lora_rank']}: latent attention", "queries, keys and values as they are", _ANOTHER
        )


def _family(config: Mapping[str, Any], backend: BackendName | None) -> Family | FsdpFamily:
    """Return the model's family.

    Raises:
        InputError: it is not supported, or the model is not one that predicts the next token.
    """
    kind = str(config.get("model_type"))
    family: Family | FsdpFamily | None = FAMILIES.get(kind)
    taken = list(FAMILIES)
    if backend != "megatron":
        family, taken = family or FSDP_FAMILIES.get(kind), [*FAMILIES, *FSDP_FAMILIES]
    if family is None:
        other = kind in FSDP_FAMILIES
        why = _NOT_MEGATRON if other else "lorarl has not been tested with it"
        raise InputError(
            "spec.model.uri",
            f"a config.json with model_type {kind} ({why})",
            f"one of {', '.join(taken)}",
            "Remove spec.trainer.backend, or set it to fsdp." if other else _ANOTHER,
        )
    architectures = list(config.get("architectures") or ())
    if architectures != [family.architecture]:
        raise refused(
            f"architectures {architectures}", f"[{family.architecture}]", "Choose a model that predicts the next token."
        )
    return family


def _require_known_values(only: Mapping[str, object], config: Mapping[str, Any]) -> None:
    for key, value in only.items():
        values = value if isinstance(value, tuple) else (value,)
        if (found := config.get(key, values[0])) not in values:
            got, expected = (f"{key}: {' or '.join(map(json.dumps, several))}" for several in ((found,), values))
            raise refused(got, f"{expected}, all that vLLM or lorarl computes in this family", "Choose another model.")


def _require_plain_layers(family: Family, config: Mapping[str, Any]) -> None:
    for biases in ("attention_bias", "mlp_bias"):
        if not family.qkv_biases and config.get(biases):
            raise refused(f"{biases}: true", "false", "Choose another model.")
    heads = config.get("num_attention_heads")
    if family.whole_norms and (keys := config.get("num_key_value_heads") or heads) != heads:
        raise refused(f"num_key_value_heads {keys}", f"{heads}, as many as attention heads", "Choose another model.")
    if (activation := config.get("hidden_act", "silu")) not in _ACTIVATIONS:
        raise refused(f"hidden_act {activation}", "silu, the only one that vLLM takes here", "Choose another model.")
    if (share := rope_of(config).get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise refused(f"partial_rotary_factor {share}", "1", "Choose another model.")
    if more := next((name for name in _MORE_LAYERS if config.get(name)), None):
        raise refused(
            f"{more} {config[more]}: layers that predict further tokens",
            "0",
            f"Set {more}: 0 in a copy's config.json, for serving too.",
        )


def _require_wide_window(family: Family, config: Mapping[str, Any], longest: int) -> None:
    window = _window(family, config)
    if window is not None and window < longest:
        raise refused(
            f"a sliding window of {window} tokens",
            f"a window of at least the job's longest sequence, {longest} tokens",
            f"Lower spec.rollout.maxPromptTokens and maxResponseTokens to {window} together, or choose another model.",
        )


def _window(family: Family, config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a layer's attention sees, itself included; None for all."""
    if family.has_window:
        window = config.get("sliding_window", family.usual_window)
        return None if window is None else int(window)
    if family.architecture == "LlamaForCausalLM" or not config.get("use_sliding_window"):
        return None
    slides = config.get("max_window_layers", 0) < config.get("num_hidden_layers", 1)
    if kinds := config.get("layer_types"):
        slides = "sliding_attention" in kinds
    return int(config["sliding_window"]) if slides and config.get("sliding_window") else None


def _require_one_window(config: Mapping[str, Any]) -> None:
    """Refuse a Qwen2 with a window in some of its layers, which vLLM 0.26 does not load."""
    if config.get("model_type") != "qwen2" or not config.get("use_sliding_window") or not config.get("sliding_window"):
        return
    layers, first = config.get("num_hidden_layers", 1), config.get("max_window_layers", 0)
    kinds = set(config.get("layer_types") or ())
    if len(kinds) > 1 or (not kinds and 0 < first < layers):
        raise refused(
            f"use_sliding_window: true from layer {first} of {layers} (max_window_layers)",
            "a window in all layers or in none, as vLLM has it in this family",
            "Set use_sliding_window: false and leave layer_types out in a copy's config.json, for serving too.",
        )


def _require_positions(config: Mapping[str, Any], longest: int) -> None:
    """Refuse sequences that vLLM would not generate. It counts the scaled positions, except Llama 3's."""
    positions = config.get("max_position_embeddings")
    if positions is None:
        return
    if rope_type(config) == "linear":
        positions = int(positions * rope_of(config).get("factor", 1.0))
    if positions < longest:
        raise InputError(
            "spec.rollout.maxResponseTokens",
            f"{longest} tokens together with rollout.maxPromptTokens",
            f"at most {positions}, the positions of the model",
            "Lower one of them.",
        )
