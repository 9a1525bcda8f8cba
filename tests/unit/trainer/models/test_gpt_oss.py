"""gpt-oss, judged by the config.json of gpt-oss-20b."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.packed_weights import plain_shapes
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.execution import kv_bytes_per_token
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False} | {
    "original_max_position_embeddings": 4096
}
CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131_072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-5,
    "rope_scaling": YARN,
    "rope_theta": 150_000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201_088,
}
H100 = Gpu(85_000_000_000, 84_000_000_000, "NVIDIA H100 80GB HBM3")


def test_its_sizes_are_those_of_all_experts_and_of_those_at_work() -> None:
    """OpenAI's card says 20.9 and 3.6 billion, of which 0.58 are an embedding or output layer."""
    require_supported(CONFIG, 4096)
    sizes = sizes_of(CONFIG)
    assert sizes.parameters(1) == 20_914_757_184
    assert round((sizes.multiplied + sizes.vocabulary * sizes.hidden) / 1e9, 1) == 3.6
    assert {linear.name.rpartition(".")[2] for linear in sizes.linears} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert len(sizes.adapted(gpu_job().adapter)) == 24 * 4
    assert kv_bytes_per_token(sizes, decide(gpu_job(), sizes, H100)) == 24 * 2 * 8 * 64 * 2


def test_it_fits_on_one_gpu_of_80_gb() -> None:
    """The base is there once: 41.8 GB."""
    verdict = judge(gpu_job(), CONFIG, H100)
    assert verdict.plan is not None and verdict.plan.execution.layout.shared_base
    assert "a layer's experts get no adapter, with all-linear too" in str(verdict)


def test_packed_weights_have_the_shapes_of_the_experts() -> None:
    packed = {"experts.gate_up_proj_blocks": (32, 5760, 90, 16), "experts.gate_up_proj_scales": (32, 5760, 90)}
    assert plain_shapes(packed) == {"experts.gate_up_proj": (32, 2880, 5760)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"] * 24}, "sliding_attention and full_attention in turn"),
        ({"rope_scaling": YARN | {"rope_type": "linear"}}, "rope_type yarn with beta_fast"),
        ({"rope_scaling": YARN | {"attention_factor": 1.0}}, "vLLM reads these alone in this family"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 32.0}}, "rope_type yarn with beta_fast"),
        ({"swiglu_limit": 5.0}, "swiglu_limit: 5.0, expected swiglu_limit: 7.0"),
        ({"rms_norm_eps": 1e-6}, "rms_norm_eps: 1e-06"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings: true"),
        ({"quantization_config": {"quant_method": "fp8"}}, "weights quantized by fp8"),
    ],
    ids=str,
)
def test_what_vllm_computes_otherwise_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        require_supported(CONFIG | changes, 4096)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["gate_up_proj", "down_proj", "*.experts.*", "mlp.experts.gate_up_proj", "linear_fc1"])
def test_adapters_on_experts_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match="the experts of this model stay as they are"):
        judge(gpu_job(f"adapter.targetModules=[q_proj, '{name}']"), CONFIG)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("rollout.tensorParallelSize=2", "a split of them was not compared"),
        ("adapter.expertRank=2", "the model's experts stay as they are"),
        ("trainer.routerReplay=true", "the model's experts stay as they are"),
    ],
)
def test_what_asks_for_experts_of_a_job_s_own_is_refused(field: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        judge(gpu_job(field, gpus=2), CONFIG)
