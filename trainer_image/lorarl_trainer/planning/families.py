"""The families of models that lorarl trains, and why it refuses others.

A family is supported once tests/trainer compare it with Transformers and with vLLM. docs/models.md has the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

type BackendName = Literal["megatron", "fsdp"]
"""What trains an adapter: `trainer.backend`."""


@dataclass(frozen=True)
class Family:
    """Models with one `model_type` in config.json. All of them have decoder layers of Llama's kind.

    Attributes:
        models: some that people know.
        architecture: the class of Transformers, in `architectures` of config.json.
        rope_types: kinds of rotary positions that Megatron-Bridge follows.
        has_window: `sliding_window` is in use unless it is null. In other families `use_sliding_window` decides.
        qkv_biases: the projections of queries, keys and values have biases.
        head_norms: queries and keys are normalised.
        experts: each layer has a mixture of experts in the place of its MLP.
    """

    models: str
    architecture: str
    rope_types: tuple[str, ...] = ("default",)
    has_window: bool = False
    qkv_biases: bool = False
    head_norms: bool = False
    experts: bool = False


FAMILIES = {
    "qwen2": Family("Qwen2, Qwen2.5", "Qwen2ForCausalLM", qkv_biases=True),
    "qwen3": Family("Qwen3 (dense)", "Qwen3ForCausalLM", head_norms=True),
    "llama": Family("Llama 2, 3.x, SmolLM2, TinyLlama", "LlamaForCausalLM", rope_types=("default", "llama3", "linear")),
    "mistral": Family("Mistral 7B, Nemo", "MistralForCausalLM", has_window=True),
    "qwen3_moe": Family("Qwen3-MoE", "Qwen3MoeForCausalLM", head_norms=True, experts=True),
}
"""By `model_type`."""

SUPPORTED = "; ".join(family.models for family in FAMILIES.values())

_NO_BRIDGE = "Megatron-Bridge has no conversion for it"
REFUSED = {
    "gemma4_text": "its layers differ from each other, and Megatron-Bridge does not load a small one",
    "nemotron": (
        "its norms multiply by 1 + weight, which Megatron's layers for CPUs do not have, so it cannot be compared"
    ),
    "ministral": _NO_BRIDGE,
    "ministral3": _NO_BRIDGE,
    "glm4": "vLLM looks for the adapters of gate and up apart, and Transformers has one layer for both",
    "hunyuan_v1_dense": "vLLM computes another function than Transformers: a tiny model's answers were 4 nats apart",
    "diffllama": _NO_BRIDGE,
}
"""Why families that were tried are refused, by `model_type`."""
