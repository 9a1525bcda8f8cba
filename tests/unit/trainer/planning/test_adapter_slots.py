"""How many adapters an engine holds at a time, and what that takes of its memory."""

from __future__ import annotations

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.adapter_slots import adapter_slots, why_one
from lorarl_trainer.planning.choice import choose_plan
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import QWEN3_30B_A3B, SHAPES

GB = 1_000_000_000
H200, L4 = Gpu(150 * GB, 149 * GB, "NVIDIA H200", (9, 0)), Gpu(24 * GB, int(23.4 * GB), "NVIDIA L4", (8, 9))
SEVEN = sizes_of(SHAPES["7B"])


@pytest.mark.parametrize(("gpu", "rank", "expected"), [(H200, 32, 8), (H200, 256, 3), (L4, 32, 4), (L4, 256, 1)])
def test_as_many_as_are_small_enough(gpu: Gpu, rank: int, expected: int) -> None:
    spec = gpu_job(f"adapter.rank={rank}")
    assert adapter_slots(spec, SEVEN, gpu, 8) == expected
    assert adapter_slots(spec, SEVEN, gpu, 1) == 1, "a run has one"


@pytest.mark.parametrize(
    ("fields", "model", "why"),
    [
        ([], QWEN3_30B_A3B, "experts"),
        (["model.quantization=fp8"], SHAPES["7B"], "quantized"),
        (["rollout.adapterSync=disk"], SHAPES["7B"], "adapterSync"),
        (["cluster.gpusPerNode=2"], SHAPES["7B"], "share the model"),
    ],
)
def test_some_jobs_have_one_whatever_is_asked_for(fields: list[str], model: dict, why: str) -> None:
    spec = gpu_job(*fields)
    assert why in (why_one(spec, sizes_of(model)) or "") and adapter_slots(spec, sizes_of(model), H200, 8) == 1


def test_their_memory_is_planned_and_that_of_a_run_stays() -> None:
    spec = gpu_job("adapter.rank=32")
    one, usual, eight = (choose_plan(spec, SEVEN, L4, *adapters) for adapters in ((1,), (), (8,)))
    assert one.memory.lines == usual.memory.lines and one.execution == usual.execution
    lines = [{line.what: line.bytes for line in plan.memory.lines} for plan in (one, eight)]
    # Several have no zeros beside B's of a layer of several parts.
    assert 4 * lines[0]["vLLM's adapter"] < lines[1]["vLLM's adapters"] < 8 * lines[0]["vLLM's adapter"]
    assert eight.execution.engine.adapters == 8
