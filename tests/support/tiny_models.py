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
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
}
"""The positions of Llama 3.1."""


def build(architecture: str, seed: int = 0) -> Any:
    """A model with random weights, norms around 1 and, where it has them, biases of the q, k and v projections."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    family, _, variant = architecture.partition("-")
    # GPU kernels want heads of 64 or more; the CPU's attention takes 32.
    sizes = (
        {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "initializer_range": 0.03}
        if variant == "gpu"
        else {}
    )
    common = (
        _COMMON
        | sizes
        | {"tie_word_embeddings": variant == "tied"}
        | ({"rope_parameters": LLAMA_3} if variant == "scaled" else {})
    )
    torch.manual_seed(seed)
    model = {
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**common, head_dim=64 if sizes else 32)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**common)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**common)),
    }[family]()
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
