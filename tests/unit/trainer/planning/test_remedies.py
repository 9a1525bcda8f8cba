"""A job that does not fit is refused with what would make it fit, and that does."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import choose_plan
from lorarl_trainer.planning.remedies import remedies, require_fit
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import cpu_job, gpu_job
from unit.trainer.planning.shapes import LARGER, QWEN3_30B_A3B, SHAPES, SMOLLM2

GB = 1_000_000_000
MODELS = SHAPES | {"SmolLM2": SMOLLM2, "32B": LARGER["32B"]}
SPLIT = "set spec.rollout.separateEngines.count to 1 and set spec.rollout.separateEngines.tensorParallelSize to 2"
job = partial(gpu_job, prompt_tokens=512, response_tokens=1024)


def gpu_of(gigabytes: int) -> Gpu:
    return Gpu(gigabytes * GB, int(gigabytes * 0.97 * GB), "any", (8, 0))


def refusal(spec: LoRARLJobSpec, model: dict[str, Any], gpu: Gpu) -> str:
    with pytest.raises(InputError) as refused:
        require_fit(choose_plan(spec, sizes_of(model), gpu))
    return str(refused.value)


def test_a_job_that_fits_needs_no_remedy() -> None:
    plan = choose_plan(job(), sizes_of(SHAPES["7B"]), gpu_of(80))
    require_fit(plan)
    assert remedies(plan) == ""


def test_what_does_not_fit_is_refused_with_its_table() -> None:
    message = refusal(job(), SHAPES["7B"], gpu_of(16))
    needed, free = re.search(r"needs ([\d.]+) GB on each GPU, expected at most the ([\d.]+) GB", message).groups()
    assert float(needed) > float(free) == 15.5
    assert re.search(r"^activations +\d+\.\d +training ", message, re.M)


def test_a_field_that_is_set_is_obeyed_until_the_job_does_not_fit() -> None:
    fields = ("trainer.tokensPerMicroBatch=65536", "trainer.recompute=none")
    assert (
        choose_plan(job(*fields), sizes_of(SHAPES["1.5B"]), gpu_of(80)).execution.trainer.micro_batch_tokens == 65_536
    )
    assert "Remove spec.trainer.tokensPerMicroBatch" in refusal(job(*fields), SHAPES["1.5B"], gpu_of(48))


def test_a_cache_that_holds_no_sequence_is_refused() -> None:
    message = refusal(job("rollout.gpuMemoryFraction=0.06"), SHAPES["7B"], gpu_of(80))
    assert "GB left for vLLM's KV cache, of which one sequence takes 0.1" in message
    assert "Remove spec.rollout.gpuMemoryFraction" in message


def test_workers_may_share_what_one_gpu_does_not_hold() -> None:
    sft = job("cluster.gpusPerNode=2", "algorithm.type=sft", "reward=null")
    message = refusal(sft, QWEN3_30B_A3B, gpu_of(48))
    assert "Set spec.trainer.expertParallelSize to 2." in message
    shared = sft.model_copy(update={"trainer": sft.trainer.model_copy(update={"expert_parallel_size": 2})})
    plan = choose_plan(shared, sizes_of(QWEN3_30B_A3B), gpu_of(48))
    assert plan.fits and "parameters in bf16, 1/2 of its experts" in plan.memory.table()
    generating = choose_plan(job("cluster.gpusPerNode=2", "trainer.expertParallelSize=2"), plan.model, gpu_of(48))
    assert not generating.fits and "with all experts, which vLLM uses too" in generating.memory.table()


def test_where_no_change_alone_is_enough_all_that_it_takes_are_named() -> None:
    fields = ("rollout.gpuMemoryFraction=0.01", "trainer.tokensPerMicroBatch=65536")
    message = refusal(job(*fields), SHAPES["1.5B"], gpu_of(24))
    assert "Remove spec.trainer.tokensPerMicroBatch, and remove spec.rollout.gpuMemoryFraction.\n" in message


TWO = ("rollout.separateEngines={count: 2}",)
LONG = (*TWO, "rollout.maxResponseTokens=16384")
NARROW = ("rollout.separateEngines={count: 2, gpuMemoryFraction: 0.2}", "rollout.maxResponseTokens=8192")


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("gigabytes", [8, 16, 24, 48])
@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("rollout.maxResponseTokens=8192",),
        ("rollout.offload=[]", "trainer.recompute=none", "rollout.gpuMemoryFraction=0.1"),
    ],
)
@pytest.mark.parametrize("model", MODELS)
def test_every_remedy_that_is_printed_makes_the_job_fit(
    model: str, changes: tuple[str, ...], gigabytes: int, gpus: int
) -> None:
    """D4: also more GPUs, over which the model must be one that can be split."""
    gpu, sizes = gpu_of(gigabytes), sizes_of(MODELS[model])
    plan = choose_plan(job(*changes, gpus=gpus), sizes, gpu)
    if plan.fits:
        return
    told = remedies(plan)
    if told == "Use GPUs with more memory, or a smaller model.":
        return
    for alternative in alternatives(told):
        judge(job(*changes, *alternative, gpus=gpus), MODELS[model], gpu)


@pytest.mark.parametrize(
    ("changes", "model", "gigabytes", "remedy"),
    [
        # vLLM leaves the trainer's GPU, which has room for the trainer alone.
        ((), "7B", 24, "set spec.rollout.separateEngines to {count: 1}"),
        # Two engines and a worker have three GPUs, and two workers hold what one does not.
        (LONG, "7B", 24, "set spec.cluster.gpusPerNode to 2 and set spec.rollout.separateEngines.count to 1"),
        # Neither the worker nor an engine fits, so both sides have to be split.
        (TWO, "7B", 20, "spec.rollout.separateEngines.tensorParallelSize to 4, and set spec.cluster.gpusPerNode to 2"),
        # The engine's GPU is too small for the model that the four of the trainer hold.
        ((*TWO, "cluster.gpusPerNode=4"), "32B", 48, SPLIT),
        (NARROW, "7B", 48, "set spec.rollout.separateEngines.gpuMemoryFraction to 0.9"),
    ],
)
def test_gpus_move_between_trainer_and_engines(
    changes: tuple[str, ...], model: str, gigabytes: int, remedy: str
) -> None:
    told = remedies(choose_plan(job(*changes), sizes_of(MODELS[model]), gpu_of(gigabytes)))
    assert remedy in told[0].lower() + told[1:]


@pytest.mark.parametrize("changes", [TWO, NARROW, ("rollout.separateEngines={count: 3}", "cluster.gpusPerNode=4")])
@pytest.mark.parametrize(("model", "gigabytes"), [("7B", 24), ("32B", 48), ("32B", 80), ("SmolLM2", 8)])
def test_every_remedy_of_a_job_with_separate_engines_makes_it_fit(
    model: str, gigabytes: int, changes: tuple[str, ...]
) -> None:
    """Also one that changes several fields at a time, which move GPUs."""
    gpu = gpu_of(gigabytes)
    told = remedies(choose_plan(job(*changes), sizes_of(MODELS[model]), gpu))
    if told in ("", "Use GPUs with more memory, or a smaller model."):
        return
    for alternative in alternatives(told):
        judge(job(*changes, *alternative), MODELS[model], gpu)


@pytest.mark.parametrize(("count", "ranks"), [(1, 3), (8, 1)])
@pytest.mark.parametrize("gigabytes", [3, 10])
def test_every_remedy_on_a_machine_without_gpus_makes_the_job_fit(ranks: int, gigabytes: int, count: int) -> None:
    machine = Host(gigabytes * GB, int(0.95 * gigabytes * GB))
    changes = (f"rollout.separateEngines.count={count}", f"trainer.tensorParallelSize={ranks}", "adapter.rank=6")
    plan = choose_plan(cpu_job(*changes), sizes_of(SMOLLM2), machine)
    told = remedies(plan)
    if plan.fits or told == "Use a machine with more memory, or a smaller model.":
        return
    for alternative in alternatives(told):
        judge(cpu_job(*changes, *alternative), SMOLLM2, machine)


def test_fewer_engines_leave_more_of_a_machine_to_each() -> None:
    spec = cpu_job("rollout.separateEngines.count=8")
    with pytest.raises(InputError, match=r"(?i)set spec\.rollout\.separateEngines\.count to \d"):
        judge(spec, SMOLLM2, Host(16 * GB, 15 * GB))


def test_what_may_run_in_a_cluster_is_told_nothing_that_is_refused_there() -> None:
    """A claim gives an engine's pod the GPUs of a worker's, so neither number can change alone."""
    cluster = ("checkpoint.uri=s3://adapters/7b", "rollout.separateEngines={count: 1}")
    claims = ((), ("cluster.gpuClaim={deviceClass: gpu.nvidia.com}",))
    told = [remedies(choose_plan(job(*cluster, *claim), sizes_of(SHAPES["7B"]), gpu_of(20))) for claim in claims]
    assert ["tensorParallelSize" in one for one in told] == [True, False]


PUBLISHED = (
    *("checkpoint.uri=s3://adapters/7b", "checkpoint.keepBest={}", "checkpoint.keepAll=true"),
    *("data.eval={uri: 'file:held_out.jsonl'}", "publish=[{name: a, minimum: 0, aibrix: {podSelector: {a: b}}}]"),
)


@pytest.mark.parametrize(
    ("changes", "model", "gigabytes", "left"),
    [
        (("rollout.servers=['http://server:8000']",), "32B", 48, ["cluster.gpusPerNode"]),
        (PUBLISHED, "7B", 24, ["rollout.separateEngines", "cluster.gpusPerNode"]),
    ],
)
def test_no_remedy_is_what_other_fields_of_the_manifest_rule_out(
    changes: tuple[str, ...], model: str, gigabytes: int, left: list[str]
) -> None:
    told = remedies(choose_plan(job(*changes), sizes_of(MODELS[model]), gpu_of(gigabytes)))
    assert re.findall(r"set spec\.([\w.]+) to", told, re.I) == left


def alternatives(told: str) -> list[list[str]]:
    """Remedies as overrides of the manifest, those together that have to be."""
    changes, _, _ = told.partition(". ")  # what they cost follows
    between = ", and " if ", and " in changes else ", or "
    wanted = [
        [override(one) for one in re.split(" and (?=set |remove )", change)]
        for change in changes.removesuffix(".").split(between)
    ]
    return [[one for change in wanted for one in change]] if between == ", and " else wanted


def override(remedy: str) -> str:
    """One remedy in the words of `--set`."""
    verb, field, *value = remedy.replace(" to ", " ").split(" ", 2)
    assert verb.lower() == ("set" if value else "remove")
    return f"{field.removeprefix('spec.')}={value[0] if value else 'null'}"


def test_a_gpu_that_others_use_is_judged_as_if_it_were_idle() -> None:
    """A larger one is no remedy, but the job may still be too large."""
    used = replace(gpu_of(16), free=8 * GB)
    assert refusal(job(), SHAPES["7B"], used).startswith("spec: got a job that needs ")
