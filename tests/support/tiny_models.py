"""Tiny models of the architectures in lorarl's tests. No value is trivial, not even in norms and biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 64
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10_000.0,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "bos_token_id": None,
    "initializer_range": 0.1,
    "dtype": "float32",
}
ARCHITECTURES = ("qwen3-tied", "qwen3", "qwen2-tied", "qwen2", "llama-tied", "llama", "llama-scaled")
OTHER_SHAPES = (
    *("mistral", "mistral-window"),
    *("llama-smollm2", "llama-linear", "llama-mha", "llama-wide", "qwen3-wide"),
)
"""Heads wider than their share of the hidden size, as many keys as queries, and positions scaled linearly."""
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
"""The positions of Llama 3.1."""
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 32},
    "qwen2": {},
    "llama": {},
    "mistral": {"sliding_window": None, "head_dim": 32},
}
_VARIANTS: dict[str, dict[str, Any]] = {
    # GPU kernels want heads of 64 or more; the CPU's attention takes 32.
    "gpu": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "head_dim": 64,
        "initializer_range": 0.03,
    },
    "tied": {"tie_word_embeddings": True},
    "scaled": {"rope_parameters": LLAMA_3},
    "smollm2": {
        "hidden_size": 288,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
        "rope_theta": 100_000.0,
        "initializer_range": 0.06,
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}},
    "mha": {"num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "wide": {"head_dim": 64},
    # Fewer key-value heads than ranks: one for two of them, and Qwen2.5-1.5B's for four.
    "one": {"num_key_value_heads": 1},
    "two": {"hidden_size": 192, "num_attention_heads": 12},
    "window": {"sliding_window": 64},
}


def build(architecture: str, seed: int = 0) -> Any:
    """A model with random weights, norms around 1 and, where it has them, biases of the q, k and v projections."""
    import torch
    import transformers

    family, *variants = architecture.split("-")
    config = _COMMON | {"tie_word_embeddings": False} | _FAMILIES[family]
    for variant in variants:
        config |= _VARIANTS[variant]
    name = family.capitalize()
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model.eval()


def save(architecture: str, folder: Path, seed: int = 0) -> Path:
    """Write such a model in Hugging Face format."""
    build(architecture, seed).save_pretrained(folder)
    return folder
