"""Qwen3.5 with experts, judged by the config.json of Qwen3.5-35B-A3B."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.experts_of_files import whole_experts
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.test_choice import H200

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
    "moe_intermediate_size": 512,
    "mtp_num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 248_320,
}
QWEN_3_5_35B: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "tie_word_embeddings": False,
    "text_config": TEXT,
    "vision_config": {"depth": 27},
}


def test_its_sizes_are_those_of_all_experts_and_of_those_at_work() -> None:
    """Its name says 35 billion, and 3 for a token, of which 0.5 are the embedding, or the output layer."""
    require_supported(QWEN_3_5_35B, 4096)
    sizes = sizes_of(QWEN_3_5_35B)
    assert sizes.parameters(1) == 34_660_610_688
    assert round(sizes.multiplied / 1e9, 1) == 2.4
    adapted = {linear.name.partition(".layers.3.")[2] for linear in sizes.adapted(gpu_job().adapter)}
    shared = {f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")}
    assert adapted - {""} == {*shared, *(f"self_attn.{name}_proj" for name in "qkvo")}


def test_it_fits_on_one_gpu_of_141_gb() -> None:
    verdict = judge(gpu_job(), QWEN_3_5_35B, H200)
    assert verdict.plan is not None and verdict.plan.execution.layout.shared_base
    assert "a layer's experts get no adapter, with all-linear too" in str(verdict)


def test_files_with_each_expert_have_the_shapes_of_whole_ones() -> None:
    """Published files have whole ones, and Transformers writes each expert."""
    names = ("gate_proj", "up_proj", "down_proj")
    each = {
        f"mlp.experts.{n}.{name}.weight": (32, 64) if name[0] != "d" else (64, 32) for n in range(12) for name in names
    }
    whole = {"mlp.experts.gate_up_proj": (12, 64, 64), "mlp.experts.down_proj": (12, 64, 32)}
    assert (
        whole_experts({"norm.weight": (64,), **each})
        == {"norm.weight": (64,), **whole}
        == whole_experts({"norm.weight": (64,), **whole})
    )


@pytest.mark.parametrize("name", ["*.experts.*", "mlp.experts.gate_up_proj", "experts.down_proj"])
def test_adapters_on_experts_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match=r"in_proj_qkv, .*: the experts of this model stay as they are"):
        judge(gpu_job(f"adapter.targetModules=[q_proj, '{name}']"), QWEN_3_5_35B)


@pytest.mark.parametrize("name", ["down_proj", "shared_expert.up_proj", "*.mlp.*"])
def test_a_shared_expert_gets_adapters_by_its_own_names(name: str) -> None:
    adapter = gpu_job(f"adapter.targetModules=['{name}']").adapter
    assert all(".shared_expert." in linear.name for linear in sizes_of(QWEN_3_5_35B).adapted(adapter))


def test_the_gate_of_a_shared_expert_gets_no_adapter() -> None:
    """vLLM 0.26 computes without it: findings/vllm-adapter-on-a-shared-experts-gate.sh shows that."""
    with pytest.raises(InputError, match=r"'shared_expert_gate', expected a layer that may have an adapter"):
        judge(gpu_job("adapter.targetModules=[shared_expert_gate]"), QWEN_3_5_35B)
    judge(gpu_job("adapter.excludeModules=[shared_expert_gate]"), QWEN_3_5_35B)


def test_weights_of_experts_that_do_not_add_up_are_refused() -> None:
    config = QWEN_3_5_35B | {"text_config": TEXT | {"norm_topk_prob": False}}
    with pytest.raises(InputError, match=r"norm_topk_prob: false, expected norm_topk_prob: true"):
        require_supported(config, 4096)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("adapter.expertRank=2", "the model's experts stay as they are"),
        ("trainer.routerReplay=true", "the model's experts stay as they are"),
        ("rollout.tensorParallelSize=2", "whose layers keep a state"),
    ],
)
def test_what_asks_for_experts_of_a_job_s_own_is_refused(field: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        judge(gpu_job(field, gpus=2), QWEN_3_5_35B)
