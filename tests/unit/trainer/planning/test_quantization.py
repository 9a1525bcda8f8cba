"""A quantized base: what it takes of the memory, where it is offered, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.remedies import remedies
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import LARGER, QWEN3_30B_A3B, SHAPES

GB = 1_000_000_000
FP8 = "model.quantization=fp8"
job = partial(gpu_job, prompt_tokens=512, response_tokens=1024)


def planned(spec: LoRARLJobSpec, model: dict[str, Any], gigabytes: int) -> JobPlan:
    gpu = Gpu(gigabytes * GB, int(gigabytes * 0.97 * GB), "any", (8, 0))
    return choose_plan(spec, sizes_of(model), gpu)


@pytest.mark.parametrize(("size", "gigabytes", "base"), [("7B", 24, 8.7), ("32B", 80, 34.3)])
def test_it_is_offered_where_bf16_does_not_fit_and_it_does(size: str, gigabytes: int, base: float) -> None:
    model = (SHAPES | LARGER)[size]
    assert "set spec.model.quantization to fp8" in remedies(planned(job(), model, gigabytes))
    plan = planned(job(FP8), model, gigabytes)
    assert plan.fits and plan.execution.backend == "fsdp" and plan.execution.layout.shared_base
    line = next(line for line in plan.memory.lines if line.what == "base model")
    assert round(line.bytes / GB, 1) == base


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
        (SHAPES["7B"] | {"vocab_size": 152_000 + 1}, "with a vocabulary of 152,001: vLLM pads it"),
    ],
)
def test_what_was_not_compared_is_refused(model: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"quantization: got fp8 for a model {why}.*Remove spec.model.quantization"):
        planned(job(FP8), model, 141)
