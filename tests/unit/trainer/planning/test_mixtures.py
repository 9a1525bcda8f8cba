"""Mixtures of experts: which are taken, what a job may ask of them, and what the plan counts of them."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.mixtures import require_known_mixture
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.memory import make_plan
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.planning.verdict import judge
from support.plans import changed
from unit.trainer.planning.jobs import cpu_job, gpu_job
from unit.trainer.planning.shapes import QWEN3_30B_A3B

GB = 1_000_000_000
PARAMETERS = 30_532_122_624
"""Of Qwen3-30B-A3B, as its model card's total has it."""
SMALL = QWEN3_30B_A3B | {"num_hidden_layers": 2, "num_experts": 16, "num_experts_per_tok": 4}


@pytest.mark.parametrize("count", ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"])
def test_other_mixtures_are_refused(count: str) -> None:
    with pytest.raises(InputError, match=rf"{count} 8: a mixture of experts, which was not compared, expected a dense"):
        require_known_mixture({"model_type": "any_moe", count: 8})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2, expected 1: experts in every layer"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers: \[0\], expected \[\]"),
        ({"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size: 512, expected 0"),
        ({"architectures": ["AnyForCausalLM"]}, "architectures"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type yarn"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, "a sliding window of 64 tokens"),
        ({"moe_intermediate_size": "768"}, "moe_intermediate_size: '768', expected a whole number above 0"),
        ({"num_experts_per_tok": None}, "config.json without num_experts_per_tok"),
    ],
)
def test_other_layers_are_refused(fields: dict[str, Any], message: str) -> None:
    config = {key: value for key, value in (SMALL | fields).items() if value is not None}
    with pytest.raises(InputError, match=rf"^spec\.model\.uri: got .*{message}"):
        judge(cpu_job(), config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["cluster.gpusPerNode=1", "trainer.precision=fp32"],
            "trainer.precision: got fp32 for a mixture of experts, expected bf16",
        ),
        (
            ["cluster.gpusPerNode=2", "rollout.tensorParallelSize=2"],
            "rollout.tensorParallelSize: got 2 for a mixture of experts, expected 1: each engine computes whole",
        ),
        (
            ["trainer.expertParallelSize=3"],
            "trainer.expertParallelSize: got 3 for a model with 16 experts, expected a divisor of that number. "
            "Set it to 2 or 4 or 8 or 16.",
        ),
        (["trainer.backend=fsdp"], "trainer.backend: got fsdp for a mixture of experts, expected megatron"),
        (["adapter.dropout=0.1"], "adapter.dropout: got 0.1 for a mixture of experts, expected 0: PEFT has none"),
        (
            ["adapter.dora=true", "algorithm.type=sft", "reward=null"],
            "adapter.dora: got true for a mixture of experts, expected false",
        ),
        (
            ["adapter.experts=sharedOuter", "adapter.targetModules=[q_proj]"],
            "adapter.experts: got sharedOuter without an adapter on any expert, expected perExpert, or adapters on all "
            "experts of a layer. Remove it, or let spec.adapter.targetModules name their layers.",
        ),
        (
            ["adapter.experts=sharedOuter", "adapter.targetModules=[up_proj, '*.layers.1.*.experts.3.down_proj']"],
            "adapter.experts: got sharedOuter for adapters on 1 of 16 experts (model.layers.1.mlp.experts.3.down_proj)",
        ),
        (["adapter.targetModules=[gate]"], "adapter.targetModules: got 'gate', expected a layer that may have an"),
    ],
)
def test_what_was_not_compared_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(InputError) as refused:
        judge(cpu_job(*changes), SMALL)
    assert f"spec.{message}" in str(refused.value)


@pytest.mark.parametrize("changes", [[], ["algorithm.type=ppo"]])
def test_each_worker_has_a_mixture_whole(changes: list[str]) -> None:
    there = Gpu(141 * GB, 139 * GB, "NVIDIA H200", (9, 0))
    verdict = judge(gpu_job("cluster.gpusPerNode=4", "cluster.nodes=2", *changes), SMALL, there)
    assert verdict.plan is not None
    assert (verdict.plan.execution.layout.trainer_ranks, verdict.plan.execution.layout.engine_ranks) == (1, 1)
    on_cpus = judge(cpu_job("cluster.nodes=2", *changes), SMALL, Host(64 * GB, 60 * GB))
    assert on_cpus.plan is not None and on_cpus.plan.execution.layout.shared_base


def test_workers_that_share_experts_hold_their_part_of_what_no_engine_uses() -> None:
    sizes, there = sizes_of(SMALL), Gpu(141 * GB, 139 * GB, "NVIDIA H200", (9, 0))
    of_experts = 2 * 16 * 3 * 2048 * 768
    assert (sizes.parameters(1) - sizes.parameters(1, 4), sizes.of_experts) == (of_experts * 3 // 4, of_experts)

    def lines(*changes: str) -> dict[str, int]:
        plan = judge(gpu_job("cluster.gpusPerNode=4", *changes), SMALL, there).plan
        assert plan is not None
        return {line.what: line.bytes for line in plan.memory.lines}

    shared, sft = ["trainer.expertParallelSize=4"], ["algorithm.type=sft", "reward=null"]
    size = AdapterSize.of(gpu_job().adapter, sizes)
    attention = 2 * 32 * (3 * 2048 + 4096 + 2 * 512 + 4096 + 2048)
    assert size.trainable(1, 4) == attention + (size.trainable(1) - attention) // 4
    for more in ([], sft):
        alone, together = lines(*more), lines(*more, *shared)
        assert together["adapter and optimizer"] == 18 * size.trainable(1, 4) < alone["adapter and optimizer"]
        held = 2 * sizes.parameters(1, 4 if more else 1)
        assert together["base model"] == held, "vLLM uses the trainer's tensors, with all experts, and sft has no vLLM"


def test_a_trainer_that_is_split_leaves_the_engine_whole() -> None:
    sizes, there = sizes_of(SMALL), Gpu(141 * GB, 139 * GB, "NVIDIA H200", (9, 0))
    fields = ["cluster.gpusPerNode=4", "trainer.tensorParallelSize=2", "trainer.expertParallelSize=4"]
    plan = judge(gpu_job(*fields), SMALL, there).plan
    assert plan is not None and plan.fits and not plan.execution.whole_experts
    execution = plan.execution
    assert (execution.layout.trainer_ranks, execution.layout.engine_ranks, execution.layout.expert_ranks) == (2, 1, 4)
    lines = {line.what: line.bytes for line in plan.memory.lines}
    assert lines["vLLM's base model"] == 2 * sizes.parameters(1)
    others = sizes.parameters(1) - sizes.of_experts
    held = others // 2 + sizes.of_experts // 4
    assert lines["base model"] == pytest.approx(2 * held, rel=1e-3)
    with pytest.raises(InputError, match=r"^spec\.trainer\.tensorParallelSize: got 2 for a model of this family"):
        judge(cpu_job("trainer.tensorParallelSize=2"), OLMOE_1B_7B)


def test_what_travels_between_workers_takes_room_and_time() -> None:
    there = Gpu(141 * GB, 139 * GB, "NVIDIA H200", (9, 0))
    fields = ["cluster.gpusPerNode=4", "trainer.tokensPerMicroBatch=16384", "trainer.recompute=none"]
    plans = [judge(gpu_job(*fields, *more), SMALL, there).plan for more in ([], ["trainer.expertParallelSize=4"])]
    (alone, together) = (plan for plan in plans if plan is not None)
    assert alone.seconds is not None and together.seconds is not None
    assert alone.seconds.training < together.seconds.training < 1.5 * alone.seconds.training
    activations = [next(line.bytes for line in p.memory.lines if line.what == "activations") for p in (alone, together)]
    assert activations[0] < activations[1] < 1.8 * activations[0]
    assert together.execution.layout.expert_ranks == 4


def test_experts_that_are_computed_again_take_all_their_products_again() -> None:
    """On an H200, all 48 layers took 5.1 s with `selective` and 4.4 s without, in micro-batches half as large."""
    there = Gpu(141 * GB, 139 * GB, "NVIDIA H200", (9, 0))
    fields = [
        ["trainer.tokensPerMicroBatch=16384", f"trainer.recompute={how}"] for how in ("none", "selective", "full")
    ]
    plans = [judge(gpu_job(*of_one), QWEN3_30B_A3B, there).plan for of_one in fields]
    none, selective, full = (plan.seconds.training for plan in plans if plan is not None and plan.seconds is not None)
    assert 1.15 * none < selective < full < 1.5 * none


def test_a_job_on_cpus_has_as_many_workers_as_share_experts() -> None:
    spec = cpu_job("trainer.expertParallelSize=2", "cluster.nodes=2")
    assert (spec.workers_per_node, spec.world_size) == (2, 4)


def test_a_dense_model_has_no_rank_of_experts() -> None:
    dense = SMALL | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_experts": None}
    assert judge(cpu_job(), dense).family == "Qwen3 (dense)"
    with pytest.raises(InputError, match=r"^spec\.adapter\.expertRank: got 4, expected no value: the model has no"):
        judge(cpu_job("adapter.expertRank=4"), dense)
    with pytest.raises(
        InputError, match=r"^spec\.adapter\.experts: got sharedOuter, expected perExpert: the model has"
    ):
        judge(cpu_job("adapter.experts=sharedOuter"), dense)
    with pytest.raises(
        InputError, match=r"^spec\.trainer\.routerReplay: got false, expected no value: the model has no"
    ):
        judge(cpu_job("trainer.routerReplay=false"), dense)
    with pytest.raises(
        InputError, match=r"^spec\.trainer\.expertParallelSize: got 2, expected 1: the model has no exp"
    ):
        judge(cpu_job("trainer.expertParallelSize=2"), dense)


@pytest.mark.parametrize("name", ["num_experts", "num_local_experts"])
def test_qwen3_moe_is_taken_by_either_name_of_its_experts(name: str) -> None:
    config = {key: value for key, value in SMALL.items() if key != "num_experts"} | {name: 16}
    verdict = judge(cpu_job(), config, Host(64 * GB, 60 * GB))
    assert verdict.family == "Qwen3-MoE" and not verdict.slower
    assert verdict.plan is not None and verdict.plan.execution.expert_rank == 8
    assert verdict.plan.execution.trainer.fused_layers and verdict.plan.execution.layout.shared_base


MIXTRAL_8X7B = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": None,
}
OLMOE_1B_7B = {
    "model_type": "olmoe",
    "architectures": ["OlmoeForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 1024,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "vocab_size": 50304,
    "max_position_embeddings": 4096,
    "clip_qkv": None,
}


@pytest.mark.parametrize(
    ("config", "family", "parameters"),
    [(MIXTRAL_8X7B, "Mixtral", 46_702_792_704), (OLMOE_1B_7B, "OLMoE", 6_919_161_856)],
)
def test_other_families_have_the_sizes_of_their_model_cards(
    config: dict[str, Any], family: str, parameters: int
) -> None:
    verdict = judge(cpu_job(), config | {"num_hidden_layers": 1}, Host(64 * GB, 60 * GB))
    assert verdict.family == family and not verdict.slower
    assert (
        verdict.plan is not None
        and verdict.plan.execution.trainer.fused_layers
        and verdict.plan.execution.layout.shared_base
    )
    assert sizes_of(config).parameters(1) == parameters


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (OLMOE_1B_7B, {"clip_qkv": 8.0}, "clip_qkv: 8.0, expected clip_qkv: null"),
        (OLMOE_1B_7B, {"norm_topk_prob": True}, "norm_topk_prob: true, expected norm_topk_prob: false"),
        (OLMOE_1B_7B, {"rms_norm_eps": 1e-6}, "rms_norm_eps: 1e-06, expected rms_norm_eps: 1e-05"),
        (OLMOE_1B_7B, {"num_key_value_heads": 4}, "num_key_value_heads 4, expected 16, as many as attention heads"),
        (OLMOE_1B_7B, {"attention_bias": True}, "attention_bias: true, expected false"),
        (MIXTRAL_8X7B, {"sliding_window": 16}, "a sliding window of 16 tokens"),
        (MIXTRAL_8X7B, {"num_local_experts": None}, "without num_local_experts"),
    ],
)
def test_what_engine_and_trainer_compute_otherwise_is_refused(
    config: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    config = {key: value for key, value in (config | fields).items() if value is not None or key == "sliding_window"}
    with pytest.raises(InputError) as refused:
        judge(cpu_job(), config)
    assert message in str(refused.value)


def test_sizes_are_those_of_the_model_card() -> None:
    sizes = sizes_of(QWEN3_30B_A3B)
    assert sizes.parameters(1) == PARAMETERS
    embedding, router = 151_936 * 2048, 48 * 128 * 2048
    active = sizes.multiplied + 2 * embedding + router
    assert 3.3e9 < active < 3.4e9, "A3B: 3.3 billion parameters for a token"


def test_the_rank_of_an_expert_is_the_active_share_of_the_rank() -> None:
    sizes = sizes_of(QWEN3_30B_A3B)
    ranks = {rank: sizes.expert_rank(cpu_job(f"adapter.rank={rank}").adapter) for rank in (1, 8, 32, 256)}
    assert ranks == {1: 1, 8: 1, 32: 2, 256: 16}
    assert sizes.expert_rank(cpu_job("adapter.rank=32", "adapter.expertRank=32").adapter) == 32


def test_the_plan_counts_every_expert() -> None:
    sizes, there = sizes_of(SMALL), Host(64 * GB, 60 * GB)
    spec = cpu_job("adapter.rank=32", "adapter.expertRank=4")
    size = AdapterSize.of(spec.adapter, sizes)
    attention = 32 * (3 * 2048 + 4096 + 2 * 512 + 4096 + 2048)  # q, k and v share an input; o
    experts = 16 * 4 * 3 * (2048 + 768)
    assert size.trainable(1) == 2 * (attention + experts)
    # vLLM has one size of buffers for all layers, and buffers for all experts or none. Those of q, k and v are of one
    # layer, with zeros beside each B.
    attention = 32 * (3 * (2048 + 4096 + 2 * 512) + 4096 + 2048)
    assert size.served(1) == 2 * (attention + 16 * 32 * 3 * (2048 + 768))
    one = AdapterSize.of(cpu_job("adapter.rank=32", "adapter.targetModules=['*.experts.3.up_proj']").adapter, sizes)
    assert one.served(1) == 2 * 16 * 32 * 3 * (2048 + 768)
    lines = {line.what: line.bytes for line in make_plan(sizes, size, decide(spec, sizes, None), there).lines}
    assert size.served(1, on_gpu=True) == 2 * (attention + 16 * 8 * (3 * 2048 + 5 * 768)), (
        "rank 8, B of gate and up twice"
    )
    assert lines["base model"] == 4 * sizes.parameters(1) and "vLLM's base model" not in lines
    assert lines["vLLM's adapter"] == 4 * size.served(1)
    assert lines["experts' adapters, joined"] == 4 * 2 * 16 * 8 * (2048 + 2 * 768 + 768 + 2048), "rank 2 x 4, and 4"


def test_the_plan_counts_what_experts_share_once() -> None:
    sizes, changes = sizes_of(SMALL), ["adapter.rank=32", "adapter.expertRank=4"]
    each, shared = (
        AdapterSize.of(cpu_job(*changes, f"adapter.experts={kind}").adapter, sizes)
        for kind in ("perExpert", "sharedOuter")
    )
    outer, inner = 2 * 3 * 4 * 2048, 2 * 3 * 4 * 768  # of an expert
    assert each.trainable(1) - shared.trainable(1) == 15 * outer
    assert shared.trainable(1) - shared.trainable(1, 4) == 12 * inner, "each of four workers has what all share"
    assert shared.written() == each.written() == each.trainable(1)
    assert shared.served(1) == each.served(1)


@pytest.mark.parametrize(("replay", "planned"), [("null", True), ("true", True), ("false", False)])
def test_the_plan_has_a_row_of_routing_for_each_token_of_the_cache(replay: str, planned: bool) -> None:
    sizes, there = sizes_of(SMALL), Host(64 * GB, 60 * GB)
    spec = cpu_job(f"trainer.routerReplay={replay}")
    execution = changed(decide(spec, sizes, None), kv_cache_most=10**9)
    plan = make_plan(sizes, AdapterSize.of(spec.adapter, sizes), execution, there)
    assert plan.execution.router_replay is planned
    lines = {line.what: line.bytes for line in plan.lines}
    keys_and_values, routing = 2 * 2 * 4 * 128 * 4, 2 * 4  # layers, heads of keys, fp32; experts of a token
    assert lines["routing of the rollout"] == lines["KV cache"] * routing // keys_and_values > 0


def test_a_gpu_replays_routing_too() -> None:
    assert decide(cpu_job("cluster.gpusPerNode=1"), sizes_of(SMALL), None).router_replay


def test_nothing_is_recorded_where_nothing_is_generated() -> None:
    sizes, there = sizes_of(SMALL), Host(64 * GB, 60 * GB)
    spec = cpu_job("algorithm.type=sft", "reward=null")
    plan = make_plan(sizes, AdapterSize.of(spec.adapter, sizes), decide(spec, sizes, None), there)
    assert plan.execution.router_replay is None
    assert "routing of the rollout" not in {line.what for line in plan.lines}
