"""What is chosen where a manifest leaves it open: the fastest step that fits, on the shapes that people train."""

from __future__ import annotations

import re
import time

import pytest

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.choices_table import choices_line, plan_table
from lorarl_trainer.planning.execution import kv_cache_bytes
from lorarl_trainer.planning.layouts import layouts
from lorarl_trainer.planning.remedies import remedies
from unit.trainer.planning.jobs import cpu_job, gpu_job
from unit.trainer.planning.shapes import LARGER, QWEN3_30B_A3B, SHAPES, SMOLLM2

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB, "NVIDIA H200", (9, 0))
GPUS = {
    24: Gpu(24 * GB, int(23.4 * GB), "NVIDIA L4", (8, 9)),
    48: Gpu(48 * GB, int(47.2 * GB), "NVIDIA L40S", (8, 9)),
    80: Gpu(80 * GB, int(78.8 * GB), "NVIDIA A100-SXM4-80GB", (8, 0)),
}
MODELS = {name: sizes_of(config) for name, config in (SHAPES | LARGER | {"SmolLM2": SMOLLM2}).items()}


def chosen(name: str, *changes: str, gpu: Gpu = H200, gpus: int = 1, **lengths: int) -> JobPlan:
    return choose_plan(gpu_job(*changes, gpus=gpus, **lengths), MODELS[name], gpu)


def decisions(plan: JobPlan) -> tuple[int, int, str, set[str]]:
    found = plan.execution
    return (
        found.layout.trainer_ranks,
        found.trainer.micro_batch_tokens,
        found.trainer.recompute,
        set(found.engine.offload),
    )


@pytest.mark.parametrize(
    ("name", "gpus", "response_tokens", "expected"),
    [
        ("7B", 1, 256, (1, 16_384, "none", set())),
        ("0.5B", 1, 256, (1, 32_768, "none", set())),
        ("7B", 1, 32_704, (1, 32_768, "none", {"kv_cache"})),
        ("14B", 1, 16_320, (1, 16_384, "none", {"kv_cache"})),
        ("32B", 1, 256, (1, 4096, "none", {"kv_cache"})),
        ("32B", 2, 256, (1, 4096, "none", {"kv_cache"})),
        ("Llama-3.1-70B", 2, 256, (2, 4096, "none", {"kv_cache"})),
    ],
)
def test_a_manifest_without_settings_is_planned_to_fit_h200s(
    name: str, gpus: int, response_tokens: int, expected: tuple[int, int, str, set[str]]
) -> None:
    plan = chosen(name, gpus=gpus, response_tokens=response_tokens)
    assert plan.fits and decisions(plan) == expected
    assert (
        plan.execution.layout.engine_ranks == plan.execution.layout.trainer_ranks and plan.execution.layout.shared_base
    )
    assert plan.memory.needed <= H200.free - 0.02 * H200.total


def test_layers_that_are_not_fused_take_smaller_micro_batches() -> None:
    plan = chosen("7B", "trainer.backend=fsdp")
    assert decisions(plan) == (1, 8192, "none", set())
    larger = chosen("7B", "trainer.backend=fsdp", "trainer.tokensPerMicroBatch=16384")
    assert plan.memory.needed < 0.7 * larger.memory.needed
    assert plan.seconds is not None and larger.seconds is not None
    assert plan.seconds.total < 1.01 * larger.seconds.total


def test_a_model_that_fits_no_single_gpu_is_split_over_as_few_as_possible() -> None:
    """Over divisors of a machine's GPUs that share its heads."""
    assert not chosen("7B", gpu=GPUS[24], prompt_tokens=512, response_tokens=1024).fits
    assert decisions(chosen("7B", gpu=GPUS[24], gpus=4, prompt_tokens=512, response_tokens=1024))[0] == 2
    assert decisions(chosen("Llama-3.1-70B", gpu=GPUS[80], gpus=8))[0] == 4
    assert not chosen("Llama-3.1-70B", gpu=GPUS[80], gpus=3).fits  # 64 heads are no multiple of 3


@pytest.mark.parametrize(
    ("name", "changes", "sizes"),
    [
        ("32B", (), [1, 2, 4, 8]),
        ("32B", ("adapter.rank=6",), [1, 2]),  # each GPU has an equal part of the rank
        ("7B", (), [1, 2, 4]),  # 28 heads
        ("0.5B", (), [1, 2]),  # 14 heads
        ("SmolLM2", (), [1]),  # 9 heads
    ],
)
def test_layouts_are_those_that_the_model_can_be_split_over(
    name: str, changes: tuple[str, ...], sizes: list[int]
) -> None:
    assert list(layouts(gpu_job(*changes, gpus=8), MODELS[name])) == [(size, size) for size in sizes]


@pytest.mark.parametrize(
    ("gpus", "changes", "ranks", "shards"),
    [
        (1, (), (1, 1), 1),
        (4, ("rollout.maxResponseTokens=64",), (1, 4), 4),
        (4, ("algorithm.type=sft", "reward=null"), (1, 1), 4),
    ],
)
def test_trainers_of_fsdp_share_a_base_that_is_too_large(
    gpus: int, changes: tuple[str, ...], ranks: tuple[int, int], shards: int
) -> None:
    """Trainer's and engine's shares are counted: on four GPUs, a quarter of each."""
    name = "32B" if gpus > 1 else "7B"
    plan = chosen(name, "trainer.backend=fsdp", *changes, gpu=GPUS[48], gpus=gpus)
    assert plan.fits and (plan.execution.layout.trainer_ranks, plan.execution.layout.engine_ranks) == ranks
    assert plan.execution.layout.base_shards == shards
    base = next(line.bytes for line in plan.memory.lines if line.what == "base model")
    whole = MODELS[name].parameters(1) * 2
    assert base == whole if shards == 1 else whole / 4 < base < 0.35 * whole
    assert f"layers over {shards} ranks" in plan_table(plan) or shards == 1
    if ranks[1] > 1:
        served = next(line.bytes for line in plan.memory.lines if line.what == "vLLM's base model")
        assert served == pytest.approx(whole / 4, rel=0.01)


def test_a_layout_that_only_vllm_can_have_is_not_the_trainers() -> None:
    """Here for a rank that 4 does not divide."""
    spec = gpu_job("adapter.rank=6", "rollout.tensorParallelSize=4", gpus=8)
    assert list(layouts(spec, MODELS["32B"])) == [(1, 4), (2, 4)]


def test_gpus_that_share_a_context_are_not_split_further() -> None:
    spec = gpu_job("trainer.contextParallelSize=2", gpus=4)
    assert list(layouts(spec, MODELS["7B"])) == [(1, 1), (2, 2)]


LONG = {"prompt_tokens": 127_000, "response_tokens": 1000}
FEW = ("rollout.promptsPerStep=2", "algorithm.groupSize=4")


def test_a_prompt_too_long_for_one_gpu_is_shared_by_two() -> None:
    """7B, a prompt of 127,000 tokens. Each GPU has half of the tokens, and the keys of all."""
    shared = chosen("7B", *FEW, "trainer.tensorParallelSize=1", gpu=GPUS[80], gpus=2, **LONG)
    assert shared.fits and shared.execution.layout.context_ranks == 2
    table = plan_table(shared)
    assert re.search(r"trainer.contextParallelSize +2 +\d", table)
    assert "1/2 of the tokens, the keys of all: 131,000 tokens of a micro-batch" in table
    fields = "trainer.tensorParallelSize=1", "trainer.contextParallelSize=1"
    alone = chosen("7B", *FEW, *fields, gpu=GPUS[80], gpus=2, **LONG)
    assert not alone.fits and alone.execution.layout.context_ranks == 1
    assert "remove spec.trainer.contextParallelSize" in remedies(alone)


def test_where_shared_tokens_are_not_chosen_they_are_proposed() -> None:
    fields = ("trainer.tensorParallelSize=1", "adapter.dropout=0.1")
    lengths = {"prompt_tokens": 100_000, "response_tokens": 1000}
    alone = chosen("7B", *FEW, *fields, gpu=GPUS[80], gpus=2, **lengths)
    assert not alone.fits and remedies(alone).endswith("or set spec.trainer.contextParallelSize to 2.")


def test_tokens_are_shared_where_that_saves_recomputation() -> None:
    """On GPUs that could train a sequence alone."""
    plan = chosen("7B", *FEW, gpus=2, **LONG)
    assert (plan.execution.layout.context_ranks, plan.execution.trainer.recompute) == (2, "selective")
    alone = chosen("7B", *FEW, "trainer.contextParallelSize=1", gpus=2, **LONG)
    assert alone.fits and alone.execution.trainer.recompute == "full"
    assert plan.seconds is not None and alone.seconds is not None and plan.seconds.total < alone.seconds.total
    short = plan_table(chosen("7B", gpus=2))
    assert "contextParallelSize" not in short, "smaller micro-batches do"


@pytest.mark.parametrize(
    ("name", "gpu", "gpus", "lengths"),
    [
        ("32B", H200, 4, LONG),
        ("Llama-3.1-8B", GPUS[80], 2, LONG),
        ("14B", GPUS[48], 8, {"prompt_tokens": 2000, "response_tokens": 30_000}),
        ("32B", GPUS[48], 8, {"prompt_tokens": 15_360, "response_tokens": 1024}),
        ("7B", H200, 2, {"prompt_tokens": 20_000, "response_tokens": 256}),
    ],
)
def test_what_is_chosen_is_never_slower_than_without_shared_tokens(
    name: str, gpu: Gpu, gpus: int, lengths: dict[str, int]
) -> None:
    """Where tokens must be shared for a layout to fit, the next layout is considered too."""
    free, alone = (
        chosen(name, *changes, gpu=gpu, gpus=gpus, **lengths) for changes in ((), ("trainer.contextParallelSize=1",))
    )
    assert free.seconds is not None and alone.seconds is not None
    assert free.seconds.total <= 1.01 * alone.seconds.total
    considered = {one.memory.execution.layout.trainer_ranks for one in free.fitting}
    assert max(considered) == alone.execution.layout.trainer_ranks


@pytest.mark.parametrize("gpus", [5, 7])
def test_chosen_layouts_divide_the_gpus_of_all_machines(gpus: int) -> None:
    plan = chosen("7B", *FEW, "cluster.nodes=2", "trainer.tensorParallelSize=2", gpus=gpus, **LONG)
    assert 2 * gpus % plan.execution.layout.trainer_workers == 0


def test_a_group_that_several_trainers_share_has_its_prompt_on_each() -> None:
    """So sharing its tokens is faster than sharing its samples: a GPU computes 3,500 tokens, and not 20,500."""
    fields = ("rollout.promptsPerStep=1", "algorithm.groupSize=8")
    lengths = {"prompt_tokens": 20_000, "response_tokens": 1000}
    assert chosen("7B", *fields, gpus=8, **lengths).execution.layout.context_ranks == 8


def test_a_long_prompt_is_computed_once_for_its_group() -> None:
    """In a micro-batch that holds the whole group, though no more."""
    plan = chosen("7B", *FEW, "trainer.contextParallelSize=2", gpus=2, **LONG)
    assert plan.execution.trainer.micro_batch_tokens == 131_000
    assert re.search(r"trainer.contextParallelSize +2 +as in the manifest", plan_table(plan))
    parted = chosen("7B", *FEW, "trainer.contextParallelSize=2", "trainer.tokensPerMicroBatch=128000", gpus=2, **LONG)
    assert plan.seconds is not None and parted.seconds is not None
    assert plan.seconds.training < 0.6 * parted.seconds.training


SET = (
    "trainer.tensorParallelSize=2",
    "rollout.tensorParallelSize=1",
    "trainer.tokensPerMicroBatch=2048",
    "trainer.recompute=selective",
    "rollout.offload=[kv_cache, weights]",
    "rollout.gpuMemoryFraction=0.4",
)


def test_what_is_set_is_obeyed() -> None:
    plan = chosen("7B", *SET, gpus=2)
    assert decisions(plan) == (2, 2048, "selective", {"kv_cache", "weights"})
    assert plan.execution.layout.engine_ranks == 1 and plan.execution.engine.memory_fraction == 0.4
    assert not choices_line(plan).startswith("trainer")


@pytest.mark.parametrize("field", SET)
def test_a_single_field_that_is_set_leaves_the_others_open(field: str) -> None:
    path, value = field.split("=")
    assert f"{path} {value}" not in choices_line(chosen("7B", field, gpus=2))


def test_the_cache_stays_only_where_that_is_faster() -> None:
    """32k tokens leave the GPU to one phase or the other, unless more is computed again."""
    plan = chosen("14B", "trainer.recompute=none", response_tokens=16_320)
    assert plan.execution.engine.offload == {"kv_cache"}
    assert plan.memory.peak("generation") > 0.97 * H200.free  # M1: the cache takes what is free in its phase
    assert plan.seconds is not None and plan.seconds.moving > 0


def test_of_equally_fast_plans_one_with_a_whole_cache_is_taken() -> None:
    """Half as long, as is assumed of them, all would fit into less, and micro-batches could be twice as large."""
    fields = ["rollout.promptsPerStep=16", "algorithm.groupSize=8", "rollout.maxResponseTokens=3072"]
    plan = choose_plan(gpu_job("adapter.rank=32", *fields), sizes_of(QWEN3_30B_A3B), H200)
    assert (
        plan.execution.engine.kv_cache_bytes == kv_cache_bytes(plan.model, plan.execution)
        and not plan.execution.engine.offload
    )
    seconds = min(candidate.seconds.total for candidate in plan.fitting)
    shorter = [
        c for c in plan.fitting if c.memory.execution.engine.kv_cache_bytes < plan.execution.engine.kv_cache_bytes
    ]
    assert seconds == min(candidate.seconds.total for candidate in shorter)
    assert plan.seconds is not None and seconds < plan.seconds.total <= 1.01 * seconds


def test_the_table_says_what_was_chosen_and_why() -> None:
    table = plan_table(chosen("32B", "trainer.recompute=none"))
    rows = {line.split("  ")[0]: line for line in table.splitlines()}
    assert rows["trainer.tokensPerMicroBatch"].split()[1] == "4096"
    assert "too large: 8192, 16384, 32768, 65536" in rows["trainer.tokensPerMicroBatch"]
    assert rows["trainer.recompute"].endswith("as in the manifest")
    assert rows["trainer.tensorParallelSize"].endswith("the smallest that fits")
    assert rows["rollout.gpuMemoryFraction"].split()[1] == "0.36"
    assert "s a step on an NVIDIA H200, with prompts at their maximum length and completions at half" in table
    assert "512 sequences of 320 tokens" in rows["KV cache"]
    kept = plan_table(chosen("32B", "trainer.recompute=none", "rollout.offload=[]"))
    assert re.search(r"KV cache .* sequences of 320 tokens.* at half of it", kept)


def test_sft_has_no_rows_of_rollouts() -> None:
    table = plan_table(chosen("7B", "algorithm.type=sft", "reward=null"))
    assert "trainer.tokensPerMicroBatch" in table and "rollout." not in table and "both phases" not in table


def test_a_gpu_that_others_use_a_little_is_planned_for_what_is_left() -> None:
    busy = Gpu(150 * GB, 90 * GB, "NVIDIA H200")
    plan = chosen("7B", gpu=busy)
    assert plan.fits and plan.memory.needed <= 90 * GB


def test_cpus_have_the_plan_that_they_had() -> None:
    """Their budgets are fixed, so that a job keeps its bytes: nothing is chosen by speed."""
    found = choose_plan(cpu_job(), MODELS["SmolLM2"], Host(25 * GB, 20 * GB))
    assert found.seconds is None and decisions(found) == (1, 1024, "none", set())
    assert found.execution.engine.kv_cache_bytes == 4 << 30 and found.execution.trainer.micro_batch_keys is None
    assert plan_table(found).splitlines()[0].split() == ["GB", "when", "from"]


def test_a_choice_takes_a_moment() -> None:
    """It is made at every start, and by `lorarl validate`."""
    began = time.process_time()
    chosen("Llama-3.1-70B", gpus=8, response_tokens=8192)
    assert time.process_time() - began < 10
