"""Configurations that Megatron-Bridge would follow only in part."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.supported_models import require_known_base

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# As published: Qwen2.5-7B-Instruct, Qwen3-8B, Llama-3.2-1B; and as Transformers 5 writes them.
KNOWN: tuple[dict[str, Any], ...] = (
    {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 131072, "rope_theta": 1e6},
    {
        "model_type": "qwen3",
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "rope_scaling": None,
    },
    {"model_type": "llama", "attention_bias": False, "mlp_bias": False, "rope_scaling": LLAMA3},
    {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
    {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"model_type": "qwen2", "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 512},
    {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 28,
        "num_hidden_layers": 28,
    },
    {"model_type": "another", "rope_scaling": {"rope_type": "yarn"}, "attention_bias": True},
)
LEFT_OUT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_type": "qwen3", "attention_bias": True}, "attention_bias: true"),
    ({"model_type": "llama", "mlp_bias": True}, "mlp_bias: true"),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 511},
        "a window of at least the job's longest sequence, 512 tokens",
    ),
    ({"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type yarn"),
    # Transformers takes rope_scaling where a config.json has both.
    (
        {"model_type": "qwen2", "rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "yarn"}},
        "rope_type yarn",
    ),
    ({"model_type": "qwen3", "quantization_config": {"quant_method": "fp8"}}, "weights quantized by fp8"),
    ({"model_type": "qwen3", "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_type linear"),
    ({"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type dynamic"),
    (
        {"model_type": "llama", "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 4096}},
        "original_max_position_embeddings 4096",
    ),
)


@pytest.mark.parametrize("config", KNOWN, ids=str)
def test_what_megatron_computes_is_taken(config: dict[str, Any]) -> None:
    require_known_base(config, 512)


@pytest.mark.parametrize(("config", "message"), LEFT_OUT, ids=lambda value: value if isinstance(value, str) else "")
def test_what_it_would_leave_out_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(
        InputError, match=r"^spec\.model\.uri: got a config\.json with .*, which Megatron-Bridge does not follow"
    ) as refused:
        require_known_base(config, 512)
    assert message in str(refused.value)
