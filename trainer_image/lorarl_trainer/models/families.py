"""The families of models that Megatron trains; `fsdp_families` has the others, and `refused_families` what is refused.

A family is supported once tests/trainer compare it with Transformers and with vLLM. docs/models.md has the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

type BackendName = Literal["megatron", "fsdp"]
"""What trains an adapter: `trainer.backend`."""


@dataclass(frozen=True)
class Experts:
    """How a family's files name the mixture of experts that a layer has in the place of its MLP.

    Attributes:
        block: what holds router and experts, within a layer.
        projections: gate, up and down of an expert.
        inner: an expert's inner size, in config.json.
        count: the number of a layer's experts there, by its names.
    """

    block: str = "mlp"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    inner: str = "moe_intermediate_size"
    count: tuple[str, ...] = ("num_experts", "num_local_experts")  # Transformers 5 writes the second name


@dataclass(frozen=True)
class Family:
    """Models with one `model_type` in config.json. All of them have decoder layers of Llama's kind.

    Attributes:
        architecture: the class of Transformers, in `architectures` of config.json.
        rope_types: kinds of rotary positions that Megatron-Bridge follows.
        has_window: `sliding_window` is in use unless it is null. In other families `use_sliding_window` decides.
        usual_window: what Transformers takes for a missing `sliding_window` there.
        qkv_biases: the projections of queries, keys and values have biases.
        head_norms: queries and keys are normalised, each head by itself.
        whole_norms: queries and keys are normalised, all heads together.
        experts: of families with a mixture of experts in each layer.
        only: values in config.json that are the only ones which trainer and vLLM compute alike.
    """

    models: str
    architecture: str
    rope_types: tuple[str, ...] = ("default",)
    has_window: bool = False
    usual_window: int | None = None
    qkv_biases: bool = False
    head_norms: bool = False
    whole_norms: bool = False
    experts: Experts | None = None
    only: Mapping[str, object] = field(default_factory=dict)


FAMILIES = {
    "qwen2": Family("Qwen2, Qwen2.5", "Qwen2ForCausalLM", qkv_biases=True),
    "qwen3": Family("Qwen3 (dense)", "Qwen3ForCausalLM", head_norms=True),
    "llama": Family("Llama 2, 3.x, SmolLM2, TinyLlama", "LlamaForCausalLM", rope_types=("default", "llama3", "linear")),
    "mistral": Family("Mistral 7B, Nemo", "MistralForCausalLM", has_window=True, usual_window=4096),
    "qwen3_moe": Family("Qwen3-MoE", "Qwen3MoeForCausalLM", head_norms=True, experts=Experts()),
    "olmoe": Family(
        "OLMoE",
        "OlmoeForCausalLM",
        whole_norms=True,
        experts=Experts(inner="intermediate_size"),
        only={"clip_qkv": None, "norm_topk_prob": False, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
    ),
    "mixtral": Family(
        "Mixtral",
        "MixtralForCausalLM",
        has_window=True,
        experts=Experts("block_sparse_moe", ("w1", "w3", "w2"), "intermediate_size", ("num_local_experts",)),
    ),
}
"""By `model_type`."""

SUPPORTED = "; ".join(family.models for family in FAMILIES.values())
