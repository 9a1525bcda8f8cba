"""Tiny models of the architectures in lorarl's tests. No value is trivial, not even in norms and biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lorarl_trainer.models.fsdp_families import auto_class

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
MIXTURES = ("qwen3_moe", "olmoe", "mixtral")
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
    "qwen3_moe": {"head_dim": 32, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
    | {"norm_topk_prob": True},
    "olmoe": {"num_key_value_heads": None, "intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"head_dim": 32, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
}
_REFUSED_MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3_next": {"head_dim": 32, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
    | {"shared_expert_intermediate_size": 64, "layer_types": ["linear_attention", "full_attention"]}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32},
    "ernie4_5_moe": {"moe_intermediate_size": 96, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1}
    | {"moe_layer_start_index": 1, "moe_layer_end_index": 1, "moe_layer_interval": 1},
    "hy_v3": {"head_dim": 32, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
    | {"num_shared_experts": 1, "first_k_dense_replace": 1},
    "exaone_moe": {"head_dim": 32, "moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
    | {"num_shared_experts": 1, "mlp_layer_types": ["dense", "sparse"], "sliding_window": 4096}
    | {"layer_types": ["full_attention", "full_attention"]},
}
"""Their reasons have tests."""


def _rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


_MINISTRAL_3 = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0, "beta_fast": 32.0, "beta_slow": 1.0} | {
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "apply_yarn_scaling": False,  # vLLM's word for what the two before say
    "llama_4_scaling_beta": 0.5,
}
_GEMMA_4 = (
    _COMMON
    | {"num_hidden_layers": 6, "head_dim": 32, "global_head_dim": 64, "sliding_window": 8, "initializer_range": 0.03}
    | {"layer_types": ["sliding_attention", "full_attention"] * 3, "tie_word_embeddings": True}
    | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "final_logit_softcapping": 3.0}
    | {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY}
    | {
        "rope_parameters": {
            "sliding_attention": _rope(1e4),
            "full_attention": _rope(1e6) | {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        }
    }
)
"""As E2B: the last layers take the keys of earlier ones, and each layer has embeddings."""
_GEMMA_4_ALIKE = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False} | {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "use_bidirectional_attention": "vision",
}
"""As 31B: keys and values that see everything have one projection, and fewer heads."""
_GPT_OSS_ROPE = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 10_000.0, "beta_fast": 32.0, "beta_slow": 1.0} | {
    "original_max_position_embeddings": 32,
    "truncate": False,
}
_FSDP_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0}
    | {"final_logit_softcapping": 3.0, "tie_word_embeddings": True},
    "gemma3_text": {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24, "tie_word_embeddings": True}
    | {"layer_types": ["sliding_attention", "full_attention"]}
    | {"rope_parameters": {"full_attention": _rope(1e6), "sliding_attention": _rope(1e4)}},
    "phi": {"partial_rotary_factor": 0.5, "num_key_value_heads": 4, "intermediate_size": 512},
    "phi3": {"sliding_window": None},
    "granite": {"attention_multiplier": 0.1, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
    | {"logits_scaling": 2.0},
    "granitemoehybrid": {"attention_multiplier": 0.1, "embedding_multiplier": 3.0, "residual_multiplier": 0.5}
    | {"logits_scaling": 2.0, "layer_types": ["attention", "attention"], "position_embedding_type": "rope"}
    | {"num_local_experts": 0, "shared_intermediate_size": 192, "mamba_n_heads": 4, "tie_word_embeddings": True},
    "olmo3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "cohere": {"logit_scale": 0.5, "tie_word_embeddings": True},
    "cohere2": {"logit_scale": 0.5, "tie_word_embeddings": True, "sliding_window": 8}
    | {"layer_types": ["sliding_attention", "full_attention"], "head_dim": 32},
    "exaone4": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 32},
    "opt": {"ffn_dim": 160, "word_embed_proj_dim": 128, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "arcee": {"head_dim": 32},
    "seed_oss": {"head_dim": 64, "attention_bias": True},
    "gemma": {"head_dim": 32, "tie_word_embeddings": True, "initializer_range": 0.06},
    "ernie4_5": {"head_dim": 32, "tie_word_embeddings": True},
    "olmo": {},
    "olmo2": {},
    "smollm3": {"tie_word_embeddings": True, "no_rope_layers": [1, 0]},
    "starcoder2": {"sliding_window": 8, "tie_word_embeddings": True},
    "stablelm": {"partial_rotary_factor": 0.25, "use_qkv_bias": True},
    "ministral3": {"head_dim": 32, "rope_parameters": _MINISTRAL_3},
    "gpt2": {"n_inner": 160, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "gemma4_text": _GEMMA_4,
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "tie_word_embeddings": True}
    | {"intermediate_size": 300, "block_multiple_of": 32},
    "glm4_moe": {"head_dim": 32, "moe_intermediate_size": 96, "n_routed_experts": 4, "num_experts_per_tok": 2}
    | {"first_k_dense_replace": 1, "n_shared_experts": 1, "routed_scaling_factor": 1.8, "attention_bias": True}
    | {"use_qk_norm": True, "partial_rotary_factor": 0.5},
    "glm4_moe_lite": {"q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16}
    | {"v_head_dim": 64, "num_key_value_heads": 4, "moe_intermediate_size": 96, "n_routed_experts": 4}
    | {"num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.8}
    | {"initializer_range": 0.05, "rms_norm_eps": 1e-6},  # Transformers' in latent norms, whatever this says
    "gpt_oss": {"head_dim": 32, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "swiglu_limit": 7.0}
    | {"rope_parameters": _GPT_OSS_ROPE},
}
_MULTIMODAL_ROPE = {"partial_rotary_factor": 0.25, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
SEEING: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": _COMMON | _FSDP_FAMILIES["gemma3_text"] | {"initializer_range": 0.04},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"image_size": 32, "patch_size": 8},
        "mm_tokens_per_image": 4,
        "image_token_index": 60,
        "boi_token_index": 61,
        "eoi_token_index": 62,
    },
    "gemma4": {
        "text_config": _GEMMA_4,
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"num_key_value_heads": 2, "head_dim": 16, "patch_size": 8, "position_embedding_size": 64},
        "audio_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        | {"subsampling_conv_channels": [8, 4], "output_proj_dims": 32},
        # Beyond the vocabulary: Transformers takes any of these for an image, also in text.
        "image_token_id": VOCABULARY,
        "video_token_id": VOCABULARY + 1,
        "audio_token_id": VOCABULARY + 2,
    },
    "qwen3_5": {
        "text_config": _COMMON
        | {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        | {"head_dim": 32, "tie_word_embeddings": False, "rope_parameters": _rope(1e4) | _MULTIMODAL_ROPE}
        | {"initializer_range": 0.02}
        | {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "depth": 1, "num_heads": 2, "patch_size": 8}
        | {"out_hidden_size": 128, "num_position_embeddings": 16},
        "image_token_id": 60,
        "video_token_id": 61,
        "vision_start_token_id": 62,
        "vision_end_token_id": 63,
        "tie_word_embeddings": False,
    },
}
"""Models that also take images."""
SEEING["qwen3_5_moe"] = SEEING["qwen3_5"] | {
    "text_config": SEEING["qwen3_5"]["text_config"]
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 64}
    | {"initializer_range": 0.03}
}
FSDP_SHAPES = (
    *_FSDP_FAMILIES,
    *SEEING,
    "granitemoehybrid-mamba",
    "ministral3-beyond",
    "mistral-short",
    "qwen2-yarn",
    "gemma4-alike",
)
"""What `trainer.backend: fsdp` alone trains: families, a window that cuts sequences off, and scaled positions."""
_VARIANTS: dict[str, dict[str, Any]] = {
    # GPU kernels want heads of 64 or more; the CPU's attention takes 32.
    "gpu": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "head_dim": 64,
        "initializer_range": 0.03,
    },
    # Positions on a quarter of those heads, and keys as wide as values, which vLLM's kernels want.
    "deltas": {"rope_parameters": _rope(1e4) | _MULTIMODAL_ROPE | {"mrope_section": [4, 2, 2]}}
    | {"linear_key_head_dim": 64, "linear_value_head_dim": 64},
    # The heads of published models: Qwen3.5's, and Gemma 4's of two sizes.
    "real": {"head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    | {"rope_parameters": _rope(1e4) | _MULTIMODAL_ROPE | {"mrope_section": [11, 11, 10]}},
    "heads": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 64},
    # Granite 4.0 H: without positions, since its Mamba layers know the order.
    "mamba": {"num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"], "mamba_expand": 2}
    | {"mamba_n_heads": 8, "mamba_d_head": "auto", "mamba_d_state": 16, "position_embedding_type": "nope"},
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
    "shares": {"norm_topk_prob": False},
    "short": {"sliding_window": 8},
    "beyond": {"rope_parameters": _MINISTRAL_3 | {"original_max_position_embeddings": 8}}
    | {"llama_4_scaling": {"original_max_position_embeddings": 8, "beta": 0.5}},
    "alike": _GEMMA_4_ALIKE,
    "words": {"vocab_size": 128},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}}
    | {"max_position_embeddings": 256},
}


def build(architecture: str, seed: int = 0) -> Any:
    """A model with random weights, norms around 1 and, where it has them, biases of the q, k and v projections."""
    import torch
    import transformers

    family, *variants = architecture.split("-")
    sees = SEEING.get(family)
    families = _FAMILIES | _FSDP_FAMILIES | _REFUSED_MIXTURES
    config = sees or _COMMON | {"tie_word_embeddings": False} | families[family]
    for variant in variants:
        changed = _VARIANTS[variant]
        config = config | ({"text_config": config["text_config"] | changed} if sees else changed)
    torch.manual_seed(seed)
    made = transformers.AutoConfig.for_model(family, **config)
    model = getattr(transformers, auto_class(family)).from_config(made, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.3)
            elif name.endswith(("sinks", ".D")):
                parameter.normal_()
                parameter.copy_(parameter.bfloat16())  # as in published files
            if family.startswith("gemma4") and name.endswith("q_norm.weight"):
                parameter.mul_(0.2)  # nothing else scales its scores
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
            elif name.endswith("e_score_correction_bias"):
                buffer.normal_(std=0.1)
    return model.eval()


def save(architecture: str, folder: Path, seed: int = 0) -> Path:
    """Write such a model in Hugging Face format."""
    build(architecture, seed).save_pretrained(folder)
    return folder
