"""Rotary positions in config.json: those that Megatron, Transformers and vLLM compute alike."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from lorarl_trainer.models.families import Family
from lorarl_trainer.models.refused_families import refused

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Constants in megatron.core.models.common.embeddings.rotary_pos_embedding; only the factor can be chosen."""


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a config.json scales positions, empty if not at all."""
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def rope_type(config: Mapping[str, Any]) -> str:
    """Return the kind of a config.json's rotary positions."""
    rope = rope_of(config)
    return str(rope.get("rope_type") or rope.get("type") or "default")


def require_known_rope(family: Family, config: Mapping[str, Any]) -> None:
    """Refuse positions that Megatron-Bridge does not follow. Raises InputError, naming those that it follows."""
    rope, kind = rope_of(config), rope_type(config)
    if kind not in family.rope_types:
        raise refused(
            f"rope_type {kind}",
            " or ".join(family.rope_types),
            "Choose another model, or take the scaling out of a copy's config.json, for serving too.",
        )
    if kind == "llama3":
        other = [f"{name} {rope[name]}" for name, value in _LLAMA3.items() if rope.get(name, value) != value]
        if other:
            expected = ", ".join(f"{name} {value:g}" for name, value in _LLAMA3.items())
            raise refused(f"rope_type llama3 with {', '.join(other)}", expected, "Choose another model.")


def require_same_positions(config: Mapping[str, Any], longest: int) -> None:
    """Refuse positions that vLLM 0.26 computes otherwise than Transformers, in sequences of so many tokens.

    Raises:
        InputError: with the key of vLLM's own that makes both the same.
    """
    _require_positions_by_kind(config)
    if rope_type(config) != "yarn":
        return
    rope = rope_of(config)
    ours, theirs = _yarn_attention(rope), _yarn_attention_of_vllm(rope)
    if not math.isclose(ours, theirs, rel_tol=1e-6):
        key = "apply_yarn_scaling: false" if ours == 1.0 else f"attn_factor: {ours / _yarn_scale(rope['factor']):.9g}"
        raise refused(
            f"positions that Transformers scales by {ours:.4g} and vLLM by {theirs:.4g} (rope_type yarn)",
            "the same in both",
            f"Set {key} beside rope_type in a copy's config.json, for serving too.",
        )
    scaled, beta = rope.get("original_max_position_embeddings"), rope.get("llama_4_scaling_beta")
    if not beta or not scaled or longest <= scaled:
        return
    same = {"original_max_position_embeddings": scaled, "beta": beta}
    if config.get("llama_4_scaling") != same:
        raise refused(
            f"queries that Transformers scales from position {scaled:,} on, and vLLM does not (llama_4_scaling_beta), "
            f"for sequences of up to {longest:,} tokens",
            "sequences of the original positions, or the same in both",
            f"Lower spec.rollout.maxPromptTokens and maxResponseTokens to {scaled} together, or set llama_4_scaling: "
            f"{json.dumps(same)} in a copy's config.json, for serving too.",
        )


def _require_positions_by_kind(config: Mapping[str, Any]) -> None:
    """Refuse positions of layers that see everything, in Gemma 4, which vLLM or Transformers computes otherwise."""
    if not str(config.get("model_type")).startswith("gemma4"):
        return
    rope = rope_of(config).get("full_attention") or {"rope_type": "proportional"}
    found = {"rope_type": rope.get("rope_type"), "factor": rope.get("factor", 1.0)}
    if found != (same := {"rope_type": "proportional", "factor": 1.0}):
        got, expected = (json.dumps({"full_attention": one}) for one in (found, same))
        raise refused(f"rope_parameters {got}", f"{expected}: vLLM reads no factor", "Choose another model.")


def _yarn_attention(rope: Mapping[str, Any]) -> float:
    """Return by what Transformers multiplies sines and cosines (`modeling_rope_utils._compute_yarn_parameters`)."""
    if (given := rope.get("attention_factor")) is not None:
        return float(given)
    one, all_of_them = rope.get("mscale"), rope.get("mscale_all_dim")
    if one and all_of_them:
        return _yarn_scale(rope["factor"], one) / _yarn_scale(rope["factor"], all_of_them)
    return _yarn_scale(rope["factor"])


def _yarn_attention_of_vllm(rope: Mapping[str, Any]) -> float:
    """Return by what vLLM does (`rotary_embedding/yarn_scaling_rope.py`)."""
    scale = _yarn_scale(rope["factor"]) if rope.get("apply_yarn_scaling", True) else 1.0
    return scale * float(rope.get("attn_factor", 1.0))


def _yarn_scale(factor: float, share: float = 1.0) -> float:
    """Return the temperature of arXiv:2309.00071, section 3.4, whose square scales attention's scores."""
    return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0
