"""The time model: what was measured on an H200, and what follows for other plans and other GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.model_sizes import ModelSizes, sizes_of
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.gpu_speeds import UNKNOWN, is_known, speed_of
from lorarl_trainer.planning.memory import make_plan
from lorarl_trainer.planning.step_time import StepSeconds, Work, decode_seconds, step_seconds, work_of
from lorarl_trainer.planning.usual import decide
from support.plans import changed
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import LARGER, QWEN3_30B_A3B, SHAPES

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB, "NVIDIA H200")
MODELS = {name: sizes_of(config) for name, config in (SHAPES | LARGER).items()}
TRANSFORMERS = ("trainer.backend=fsdp", "trainer.tokensPerMicroBatch=16384", "rollout.offload=[kv_cache]")
RAGGED = (
    "rollout.promptsPerStep=32",
    "algorithm.groupSize=16",
    "rollout.maxPromptTokens=256",
    "rollout.maxResponseTokens=4096",
)


def planned(name: str, *changes: str, gpus: int = 1, **decisions: object) -> tuple[ModelSizes, ExecutionPlan, Work]:
    spec, model = gpu_job(*changes, gpus=gpus), MODELS[name]
    plan = changed(decide(spec, model, H200), **decisions)
    return model, make_plan(model, AdapterSize.of(spec.adapter, model), plan, H200).execution, work_of(spec)


def estimated(name: str, *changes: str, mean: float | None = None, gpus: int = 1, **decisions: object) -> StepSeconds:
    model, plan, work = planned(name, *changes, gpus=gpus, **decisions)
    return step_seconds(model, plan, replace(work, mean=mean or work.mean), speed_of(H200.name))


@pytest.mark.parametrize(
    ("name", "changes", "mean", "generation", "training"),
    [
        ("0.5B", (), 256, 1.10, 0.93),
        ("0.5B", ("trainer.tokensPerMicroBatch=65536",), 256, 1.10, 0.85),
        ("7B", (), 256, 4.4, 7.05),
        (
            "7B",
            ("trainer.backend=fsdp", "trainer.tokensPerMicroBatch=16384", "rollout.offload=[kv_cache]"),
            256,
            4.74,
            9.2,
        ),
        ("7B", RAGGED, 679, 32.6, 18.8),
        ("7B", (*RAGGED, "rollout.promptsPerStep=8"), 654, 22.2, 4.7),
    ],
)
def test_what_was_measured(
    name: str, changes: tuple[str, ...], mean: float, generation: float, training: float
) -> None:
    """docs/performance.md; gpu-2026-11-21.txt, -24-fsdp, -26-ragged and -28-few-tokens.json in benchmarks/results.

    The last two have geometric lengths of these means. The last one took 5.42 ms for each of up to 4,096 decode steps.
    """
    found = estimated(name, *changes, mean=mean)
    assert found.generation == pytest.approx(generation, rel=0.1)
    assert found.training == pytest.approx(training, rel=0.1)


def test_layers_that_are_not_fused_are_slower() -> None:
    """Measured: 9.90 s instead of 7.04."""
    plain = estimated("7B", mean=256, fused_layers=False).training
    assert plain == pytest.approx(9.9, rel=0.1)


def test_recomputing_more_takes_longer() -> None:
    none, selective, full = (estimated("7B", recompute=kind).training for kind in ("none", "selective", "full"))
    assert none < selective < full
    assert 1.4 < full / none < 1.6  # a forward pass is half of what a step takes


def test_smaller_micro_batches_cost_a_bit() -> None:
    times = [estimated("7B", micro_batch_tokens=tokens).training for tokens in (16_384, 8192, 4096, 1024)]
    assert times == sorted(times) and times[1] < 1.03 * times[0] and times[3] < 1.4 * times[0]


def test_a_base_policy_and_dropout_take_forward_passes() -> None:
    plain = estimated("7B").training
    with_base = estimated("7B", "algorithm.klCoefficient=0.1").training
    assert 1.3 < with_base / plain < 1.6
    assert planned("7B", "algorithm.klCoefficient=0.1", "adapter.dropout=0.1")[2].more_forwards == 2
    pairs = gpu_job("reward=null", "algorithm.type=dpo")
    assert work_of(pairs).more_forwards == 1, "the reference of dpo"


def test_a_critic_takes_three_passes() -> None:
    ppo = ("algorithm.type=ppo", "algorithm.groupSize=8")
    assert planned("7B", *ppo)[2].more_forwards == 3
    assert 2.0 < estimated("7B", *ppo).training / estimated("7B").training < 2.8


def test_few_keys_part_a_group_and_its_prompt_is_computed_again() -> None:
    long_prompts = ("rollout.maxPromptTokens=8192", "rollout.maxResponseTokens=128", "algorithm.groupSize=16")
    whole = estimated("7B", *long_prompts, micro_batch_keys=200_000).training
    halves = estimated("7B", *long_prompts, micro_batch_keys=75_000).training
    assert 1.7 < halves / whole < 2.0


def test_a_decode_step_reads_the_base_until_multiplying_takes_longer() -> None:
    model, plan, _ = planned("7B")
    speed = speed_of(H200.name)
    few, some, many = (decode_seconds(model, plan, speed, running, 300) for running in (1, 64, 512))
    assert few == pytest.approx(some, rel=0.1) and many > 2 * some
    assert few > 2 * 7e9 / speed.bandwidth


def test_a_mixture_reads_the_experts_that_tokens_are_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured with 12 layers of Qwen3-30B-A3B: benchmarks/results/gpu-2026-11-28-experts.json."""
    monkeypatch.setitem(MODELS, "A3B-12", sizes_of(QWEN3_30B_A3B | {"num_hidden_layers": 12}))
    found = estimated("A3B-12", mean=256)
    assert found.generation == pytest.approx(2.16, rel=0.1) and found.training == pytest.approx(1.71, rel=0.1)
    model, plan, _ = planned("A3B-12")
    speed = speed_of(H200.name)
    one, few, many = (decode_seconds(model, plan, speed, running, 300) for running in (1, 8, 512))
    assert one < few < many / 3
    assert many > 2 * (model.of_experts + model.vocabulary * model.hidden) / speed.bandwidth


def test_a_cache_for_fewer_sequences_takes_more_steps() -> None:
    model, plan, work = planned("7B", *RAGGED)
    speed = speed_of(H200.name)
    tenth = changed(plan, kv_cache_bytes=plan.engine.kv_cache_bytes // 10)
    assert step_seconds(model, tenth, work, speed).generation > 1.5 * step_seconds(model, plan, work, speed).generation


def test_giving_memory_up_takes_time() -> None:
    stays, given_up = estimated("7B", *RAGGED), estimated("7B", *RAGGED, offload=frozenset({"kv_cache"}))
    assert stays.moving == 0 and 0.1 < given_up.moving < 2
    weights = estimated("7B", *RAGGED, offload=frozenset({"kv_cache", "weights"}), shared_base=False)
    assert weights.moving > given_up.moving


def test_data_parallel_workers_share_the_step() -> None:
    one, two = estimated("7B", mean=256), estimated("7B", mean=256, gpus=2)
    assert two.training == pytest.approx(one.training / 2, rel=0.05)
    assert one.generation / 2 < two.generation < one.generation


def test_tensor_parallel_workers_exchange_hidden_states() -> None:
    fields = ("trainer.tensorParallelSize=2",)
    one, two = estimated("7B", mean=256), estimated("7B", *fields, mean=256, gpus=2, fused_layers=True)
    assert one.training / 2 < two.training < 0.65 * one.training


def test_workers_that_share_a_context_exchange_keys() -> None:
    fields = ("trainer.contextParallelSize=2",)
    one, two = estimated("7B", mean=256), estimated("7B", *fields, mean=256, gpus=2)
    assert one.training / 2 < two.training < 0.55 * one.training


def test_sft_generates_nothing() -> None:
    found = estimated("7B", "algorithm.type=sft", "reward=null")
    assert found.generation == found.moving == 0 and found.total == found.training > 0


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA RTX 6000 Ada Generation", 364),
    ],
)
def test_gpus_are_known_by_their_names(name: str, tflops: float) -> None:
    assert is_known(name) and speed_of(name).tflops == tflops


def test_another_gpu_is_as_fast_as_an_a100() -> None:
    assert not is_known("NVIDIA Z900") and speed_of("NVIDIA Z900") == UNKNOWN == speed_of("NVIDIA A100-SXM4-40GB")


def test_a_slower_gpu_takes_longer() -> None:
    model, plan, work = planned("7B")
    times = [step_seconds(model, plan, work, speed_of(f"NVIDIA {name}")).total for name in ("H200", "A100", "L4")]
    assert times == sorted(times) and times[2] > 5 * times[0]
