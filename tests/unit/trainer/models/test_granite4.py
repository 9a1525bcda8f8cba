"""Granite 4.0, judged by the config.json of Granite 4.0 Micro, which has sizes of Mamba layers, too."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.verdict import judge
from unit.trainer.models.test_gpt_oss import H100
from unit.trainer.planning.jobs import gpu_job

GRANITE_4_MICRO: dict[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "hidden_size": 2560,
    "intermediate_size": 8192,
    "layer_types": ["attention"] * 40,
    "mamba_d_state": 256,
    "mamba_n_heads": 128,
    "max_position_embeddings": 131_072,
    "model_type": "granitemoehybrid",
    "num_attention_heads": 40,
    "num_experts_per_tok": 0,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "num_local_experts": 0,
    "position_embedding_type": "rope",
    "shared_intermediate_size": 8192,
    "tie_word_embeddings": True,
    "vocab_size": 100_352,
}


def test_its_sizes_are_those_of_attention_and_one_mlp() -> None:
    require_supported(GRANITE_4_MICRO, 4096)
    sizes = sizes_of(GRANITE_4_MICRO)
    assert sizes.parameters(1) == 3_402_836_480 and sizes.inner == 8192
    assert not sizes.states and sizes.attention_layers == 40
    assert len(sizes.adapted(gpu_job().adapter)) == 40 * 6
    plan = judge(gpu_job(), GRANITE_4_MICRO, H100).plan
    assert plan is not None and plan.fits and plan.execution.layout.shared_base


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_local_experts": 64}, "Granite 4.0 with experts.*: its experts beside a shared MLP were not compared"),
        ({"attention_bias": True}, "attention_bias: true, expected attention_bias: false"),
    ],
)
def test_what_was_not_compared_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_supported(GRANITE_4_MICRO | change, 4096)


@pytest.mark.parametrize(
    ("left_out", "message"), [("layer_types", "0 layers with attention"), ("num_local_experts", "not compared")]
)
def test_what_it_leaves_out_means_mamba_layers_or_experts(left_out: str, message: str) -> None:
    config = {key: value for key, value in GRANITE_4_MICRO.items() if key != left_out}
    with pytest.raises(InputError, match=message):
        require_supported(config, 4096)


GRANITE_4_H_1B: dict[str, Any] = GRANITE_4_MICRO | {
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "layer_types": ["attention" if number % 10 == 5 else "mamba" for number in range(40)],
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 48,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "position_embedding_type": "nope",
    "shared_intermediate_size": 4096,
}


def test_sizes_of_an_h_model_are_those_of_both_kinds_of_layers() -> None:
    require_supported(GRANITE_4_H_1B, 4096)
    sizes = sizes_of(GRANITE_4_H_1B)
    assert (sizes.attention_layers, len(sizes.states)) == (4, 36)
    assert sizes.states[0].inputs == 3 * (3072 + 2 * 128) and sizes.states[0].recurrent == 48 * 64 * 128
    assert len(sizes.adapted(gpu_job().adapter)) == 4 * 6 + 36 * 4
    plan = judge(gpu_job(), GRANITE_4_H_1B, H100).plan
    assert plan is not None and plan.fits and plan.execution.layout.shared_base
    with pytest.raises(InputError, match=r"precision: got fp32 for a model with Mamba layers, expected bf16"):
        judge(gpu_job("trainer.precision=fp32"), GRANITE_4_H_1B)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mamba_n_groups": 8}, "mamba_n_groups: 8, expected mamba_n_groups: 1"),
        ({"mamba_conv_bias": False}, "mamba_conv_bias: false"),
        ({"time_step_limit": [0.0, 0.1]}, r"time_step_limit \[0.0, 0.1\], expected none"),
        ({"layer_types": ["attention"] * 21 + ["mamba"] * 19}, "21 layers with attention, and 19 Mamba layers"),
    ],
)
def test_mamba_layers_that_vllm_computes_otherwise_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_supported(GRANITE_4_H_1B | change, 4096)
