"""A quantized base: what it takes of the memory, where it is offered, and what is refused."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec, Quantization
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.kernels.formats import FORMATS
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.gpu_speeds import speed_of
from lorarl_trainer.planning.remedies import remedies
from lorarl_trainer.planning.step_time import decode_seconds
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import LARGER, QWEN3_30B_A3B, SHAPES

GB = 1_000_000_000
GPUS = (16, 24, 32, 40, 48, 80, 141)
DOCUMENTED = (Path(__file__).parents[4] / "docs/quantization.md").read_text()
FP8, NF4 = "model.quantization=fp8", "model.quantization=nf4"
job = partial(gpu_job, prompt_tokens=512, response_tokens=1024)


def planned(spec: LoRARLJobSpec, model: dict[str, Any], gigabytes: int) -> JobPlan:
    gpu = Gpu(gigabytes * GB, int(gigabytes * 0.97 * GB), "any", (8, 0))
    return choose_plan(spec, sizes_of(model), gpu)


@pytest.mark.parametrize(
    ("size", "gigabytes", "quantization", "base"),
    [("7B", 24, "fp8", 8.7), ("32B", 80, "fp8", 34.3), ("7B", 16, "nf4", 5.6), ("32B", 48, "nf4", 19.2)],
)
def test_what_is_nearest_to_the_files_of_what_fits_is_offered(
    size: str, gigabytes: int, quantization: Quantization, base: float
) -> None:
    model = (SHAPES | LARGER)[size]
    told = remedies(planned(job(), model, gigabytes))
    assert f"set spec.model.quantization to {quantization}." in told
    assert f"With {quantization}, the base differs" in told
    plan = planned(job(f"model.quantization={quantization}"), model, gigabytes)
    assert plan.fits and plan.execution.backend == "fsdp" and plan.execution.layout.shared_base
    line = next(line for line in plan.memory.lines if line.what == "base model")
    assert round(line.bytes / GB, 1) == base


@pytest.mark.parametrize("row", re.findall(r"^\| (?:Qwen2.5-|)(\S+) \| ([\d., ]+) GB \| (.*) \|$", DOCUMENTED, re.M))
def test_the_documented_sizes_are_those_of_the_plan(row: tuple[str, str, str]) -> None:
    model, bases, smallest = (SHAPES | LARGER)[row[0]], row[1].split(", "), row[2].split(" | ")
    for quantization, base, told in zip(("none", *FORMATS), bases, smallest, strict=True):
        changed = [] if quantization == "none" else [f"model.quantization={quantization}"]
        gpus, least = (2, 141) if told == "two of 141 GB" else (1, int(told.removesuffix(" GB")))
        plan = planned(job(*changed, gpus=gpus), model, least)
        assert plan.fits, told
        line = next(line for line in plan.memory.lines if line.what == "base model")
        if gpus == 1:
            assert f"{line.bytes / GB:.1f}" == base
        smaller = [size for size in GPUS if size < least]
        one_less = planned(job(*changed), model, 141 if gpus == 2 else smaller[-1]) if smaller else None
        assert one_less is None or not one_less.fits, told


def test_a_job_with_fp8_that_does_not_fit_is_offered_nf4() -> None:
    assert "set spec.model.quantization to nf4." in remedies(planned(job(FP8), SHAPES["7B"], 16)).lower()
    assert "spec.model.quantization" not in remedies(planned(job(NF4), SHAPES["7B"], 12))


@pytest.mark.parametrize("quantization", FORMATS)
def test_a_decode_step_reads_codes_and_writes_and_reads_weights(quantization: Quantization) -> None:
    plain, held = planned(job("trainer.backend=fsdp"), SHAPES["7B"], 80), sizes_of(SHAPES["7B"])
    plan = planned(job(f"model.quantization={quantization}"), SHAPES["7B"], 80).execution
    speed = speed_of("H200")
    more = decode_seconds(held, plan, speed, 1, 1) - decode_seconds(held, plain.execution, speed, 1, 1)
    bytes_more = 0.6 * more * speed.bandwidth / held.of_products  # the share of it that an H200 reached
    assert bytes_more == pytest.approx({"fp8": 3.0, "nf4": 2.517}[quantization], abs=0.001)


@pytest.mark.parametrize("field", ["trainer.backend=megatron", "adapter.type=lora", "rollout.tensorParallelSize=1"])
def test_it_is_offered_only_beside_what_else_the_manifest_says(field: str) -> None:
    offered = "spec.model.quantization" in remedies(planned(job(field), SHAPES["7B"], 24))
    assert offered is (field == "rollout.tensorParallelSize=1")


def test_each_trainer_has_the_whole_base() -> None:
    plan = planned(job(FP8, "algorithm.type=sft", "reward=null", "cluster.gpusPerNode=2"), SHAPES["7B"], 80)
    assert plan.execution.layout.base_shards == 1 and plan.fits


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (QWEN3_30B_A3B, "with experts"),
        (
            SHAPES["7B"] | {"intermediate_size": 18_945},
            "with 18,945 inputs of .*mlp.down_proj: nf4 takes a multiple of 2",
        ),
        (SHAPES["7B"] | {"vocab_size": 152_000 + 1}, "with a vocabulary of 152,001: vLLM pads it"),
    ],
)
def test_what_was_not_compared_is_refused(model: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"quantization: got nf4 for a model {why}.*Remove spec.model.quantization"):
        planned(job(NF4), model, 141)
