"""LFM2, judged by the config.json of LFM2-1.2B, and by the shape of LFM2.5-2.6B."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job

LFM_2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12_288,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128_000,
    "model_type": "lfm2",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "tie_embedding": True,
    "vocab_size": 65_536,
}
_ATTENTION = (2, 5, 9, 13, 17, 21, 24, 27)
LFM_2_5: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": False,
    "hidden_size": 2048,
    "intermediate_size": 10_752,
    "layer_types": ["full_attention" if number in _ATTENTION else "conv" for number in range(30)],
    "max_position_embeddings": 131_072,
    "model_type": "lfm2",
    "num_attention_heads": 32,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "vocab_size": 128_000,
}


@pytest.mark.parametrize(
    ("config", "parameters", "kinds"), [(LFM_2, 1_170_340_608, (6, 10)), (LFM_2_5, 2_697_198_592, (8, 22))]
)
def test_its_sizes_are_those_of_both_kinds_of_layers(
    config: dict[str, Any], parameters: int, kinds: tuple[int, int]
) -> None:
    require_supported(config, 4096)
    sizes = sizes_of(config)
    assert sizes.parameters(1) == parameters
    assert (sizes.attention_layers, len(sizes.states)) == kinds
    assert sizes.states[0].inputs == 2 * 2048 and sizes.states[0].recurrent == 0
    assert len(sizes.adapted(gpu_job().adapter)) == kinds[0] * 7 + kinds[1] * 5


def test_it_fits_on_a_small_gpu_and_is_not_split() -> None:
    plan = judge(gpu_job(), LFM_2, Gpu(total=24_000_000_000, free=23_000_000_000)).plan
    assert plan is not None and plan.fits and plan.execution.layout.shared_base
    with pytest.raises(InputError, match=r"rollout\.tensorParallelSize: got 2 for a model whose layers keep a state"):
        judge(gpu_job("rollout.tensorParallelSize=2", gpus=2), LFM_2)


def test_it_is_of_bf16_on_a_gpu() -> None:
    with pytest.raises(InputError, match=r"precision: got fp32 for a model with short convolutions, expected bf16"):
        judge(gpu_job("trainer.precision=fp32"), LFM_2)
    judge(gpu_job("trainer.precision=fp32", "cluster.gpusPerNode=0"), LFM_2)


def test_vllms_buffer_for_a_convolutions_inputs_is_that_of_one_product() -> None:
    adapter = AdapterSize.of(gpu_job("adapter.rank=32", "adapter.targetModules=[in_proj]").adapter, sizes_of(LFM_2))
    assert adapter.served(1) == 10 * 32 * (2048 + 3 * 2048)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_bias": True}, "conv_bias: true, expected conv_bias: false"),
        ({"conv_dim": 1024}, "conv_dim 1024, expected 2048"),
        ({"head_dim": 128}, "head_dim 128, expected 64"),
        ({"tie_embedding": False}, "tie_word_embeddings: false, expected tie_word_embeddings: true"),
        ({"block_ffn_dim_multiplier": None}, "block_ffn_dim_multiplier: null, expected a number"),
        ({"full_attn_idxs": list(range(9))}, "9 layers with attention of 16, expected one or more, and no more than"),
        ({"full_attn_idxs": []}, "0 layers with attention of 16"),
    ],
)
def test_what_vllm_computes_otherwise_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        require_supported(LFM_2 | change, 4096)
