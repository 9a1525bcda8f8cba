"""GLM-4.7-Flash, judged by its config.json."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.models.supported_models import require_supported
from lorarl_trainer.planning.execution import kv_bytes_per_token
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.test_choice import H200

CONFIG: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10_240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202_752,
    "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rope_scaling": None,
    "rope_theta": 1_000_000,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "v_head_dim": 256,
    "vocab_size": 154_880,
}
ATTENTION = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}


def test_its_sizes_are_those_of_all_experts_and_of_those_at_work() -> None:
    """Its card says 30 billion, and 3 for a token."""
    require_supported(CONFIG, 4096)
    sizes = sizes_of(CONFIG)
    assert sizes.parameters(1) == 29_943_393_920
    assert round(sizes.multiplied / 1e9, 1) == 3.3
    assert {linear.name.rpartition(".")[2] for linear in sizes.adapted(gpu_job().adapter)} == ATTENTION
    assert kv_bytes_per_token(sizes, decide(gpu_job(), sizes, H200)) == 47 * 2 * 20 * 256 * 2


def test_it_fits_on_one_gpu_of_141_gb() -> None:
    verdict = judge(gpu_job(), CONFIG, H200)
    assert verdict.plan is not None and verdict.plan.execution.layout.shared_base
    assert "a layer's experts get no adapter, with all-linear too" in str(verdict)
    assert "PEFT 0.21 takes their names for those of experts in this family, and drops them" in str(verdict)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first_k_dense_replace": 2}, "first_k_dense_replace 2 and mlp_layer_types ['dense', 'sparse'"),
        ({"v_head_dim": 128}, "v_head_dim 128, expected 256, as wide as keys"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type yarn, expected positions as they are"),
        ({"rope_interleave": False}, "rope_interleave: false"),
        ({"n_group": 8}, "n_group: 8"),
        ({"norm_topk_prob": False}, "norm_topk_prob: false"),
    ],
    ids=str,
)
def test_what_was_not_compared_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        require_supported(CONFIG | changes, 4096)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["gate_proj", "mlp.down_proj", "*.experts.*"])
def test_adapters_on_mlps_and_experts_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InputError, match="the experts of this model stay as they are"):
        judge(gpu_job(f"adapter.targetModules=[q_b_proj, '{name}']"), CONFIG)


def test_it_is_not_split() -> None:
    with pytest.raises(InputError, match="a split of them was not compared"):
        judge(gpu_job("rollout.tensorParallelSize=2", gpus=2), CONFIG)
