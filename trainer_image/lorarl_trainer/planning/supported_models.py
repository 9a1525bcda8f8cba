"""Which base models the trainer takes, judged by config.json.

A config.json may ask for something that Megatron-Bridge does not follow, mostly without a word. Such a model is
refused. Reinforcement learning would find out, because vLLM generates with the whole configuration and its
log-probabilities are compared with the trainer's. Supervised fine-tuning has nothing to compare with: it would train
the adapter on another function than the one it is served on. The rules follow the bridges of Qwen2, Qwen3 and Llama,
the families whose function the tests compare with Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lorarl_trainer.errors import InputError

FAMILIES = ("qwen2", "qwen3", "llama")
"""`model_type` of the configurations that are checked. What other bridges leave out is not known here."""
_PLAIN_FAMILIES = (*FAMILIES, "mistral")
"""Families whose layers are Llama's."""
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants in megatron.core.models.common.embeddings.rotary_pos_embedding; only the factor can be chosen."""


def require_known_base(config: Mapping[str, Any], longest: int) -> None:
    """Refuse a base model that the trainer would take for another function.

    Args:
        config: The content of config.json.
        longest: Tokens of the job's longest sequence. A window that is at least as long cuts nothing off.

    Raises:
        InputError: It asks for something that would not be followed.
    """
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise _refused(
            f"weights quantized by {method}", "weights in bf16, fp16 or fp32", "Name the model that was quantized."
        )
    family = config.get("model_type")
    if family not in FAMILIES:
        return
    for biases in ("attention_bias", "mlp_bias"):
        if family != "qwen2" and config.get(biases):
            raise _refused(f"{biases}: true", f"{family} without it", "Choose another model.")
    window = config.get("sliding_window")
    slides = config.get("use_sliding_window") and config.get("max_window_layers", 0) < config.get(
        "num_hidden_layers", 1
    )
    if family != "llama" and slides and window and window < longest:
        hint = (
            f"Lower spec.rollout.maxPromptTokens and maxResponseTokens to {window} together, or choose another model."
        )
        raise _refused(
            f"use_sliding_window and a window of {window}",
            f"a window of at least the job's longest sequence, {longest} tokens",
            hint,
        )
    _require_known_rope(family, config)


def has_plain_layers(config: Mapping[str, Any]) -> bool:
    """Return whether all of a model's layers are of Llama's kind in Megatron: RMSNorm, rotary positions, SwiGLU.

    Attention is causal over whole sequences. `backends/megatron/fused_layer.py` computes such layers in a few steps.

    Args:
        config: The content of config.json.
    """
    family = config.get("model_type")
    # The other families' bridges ignore the window. Mistral's is 4,096 if config.json has none.
    has_window = family == "mistral" and config.get("sliding_window", 4096) is not None
    return (
        family in _PLAIN_FAMILIES
        and not has_window
        and config.get("hidden_act", "silu") == "silu"
        and _rope_type(config) in ("default", "llama3", "linear")
    )


def _rope_type(config: Mapping[str, Any]) -> str:
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return str(rope.get("rope_type") or rope.get("type") or "default")


def _require_known_rope(family: str, config: Mapping[str, Any]) -> None:
    rope, kind = config.get("rope_scaling") or config.get("rope_parameters") or {}, _rope_type(config)
    known = ("default", "llama3", "linear") if family == "llama" else ("default",)
    if kind not in known:
        raise _refused(
            f"rope_type {kind}",
            f"{', '.join(known)} for {family}",
            "Choose another model, or take the scaling out of a copy's config.json, for serving too.",
        )
    if kind == "llama3":
        other = [f"{name} {rope[name]}" for name, value in _LLAMA3.items() if rope.get(name, value) != value]
        if other:
            expected = ", ".join(f"{name} {value:g}" for name, value in _LLAMA3.items())
            raise _refused(f"rope_type llama3 with {', '.join(other)}", expected, "Choose another model.")


def _refused(got: str, expected: str, hint: str) -> InputError:
    return InputError(
        "spec.model.uri", f"a config.json with {got}, which Megatron-Bridge does not follow", expected, hint
    )
