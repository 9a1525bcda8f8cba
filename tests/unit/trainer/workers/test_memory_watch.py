"""What a step takes of a GPU is compared with its plan: recorded each time, and told once if the plan was too low."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat

import pytest

from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.models.model_sizes import sizes_of
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.workers.gpu_memory import MemoryWatch, missed
from support.plans import changed
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import SHAPES

GB = 1_000_000_000


@dataclass
class Fake:
    """A device with so much free memory at each look, and so many unneeded pieces and retries."""

    looks: Iterator[Gpu | Host]
    pieces: Iterator[int] = field(default_factory=lambda: repeat(0))
    counts: Iterator[int] = field(default_factory=lambda: repeat(0))

    def memory(self) -> Gpu | Host:
        return next(self.looks)

    def unneeded(self) -> int:
        return next(self.pieces)

    def retries(self) -> int:
        return next(self.counts)


def plan(generation: int, training: int, *offload: str) -> ExecutionPlan:
    usual = decide(gpu_job(), sizes_of(SHAPES["7B"]), Gpu(150 * GB, 149 * GB))
    return changed(usual, peaks=(generation * GB, training * GB), offload=frozenset(offload))


@pytest.mark.parametrize(
    ("planned", "taken", "told"),
    [
        (plan(100, 80), (90, 79), None),
        (plan(100, 80), (90, 90), None),  # memory of the other phase is still there
        (plan(100, 80), (90, 101), "training took 101.0 GB, planned 100.0"),
        (plan(100, 80, "kv_cache"), (90, 90), "training took 90.0 GB, planned 80.0"),
        (plan(100, 80, "kv_cache"), (101, 90), "generation took 101.0 GB, planned 100.0; training took 90.0 GB, p"),
    ],
)
def test_a_plan_that_was_too_low_is_told(planned: ExecutionPlan, taken: tuple[int, int], told: str | None) -> None:
    found = missed(planned, {"generation": taken[0] * GB, "training": taken[1] * GB})
    assert found is None if told is None else (found is not None and told in found)


def test_each_step_is_recorded_and_a_miss_told_once() -> None:
    free = iter(Gpu(150 * GB, size * GB) for size in (140, 50, 35, 50, 30))
    watch = MemoryWatch(plan(100, 80, "kv_cache"), Fake(free, counts=iter((3, 3))))
    watch.ended("generation")
    assert watch.columns == {"gpu_memory/generation": 90.0} and watch.warnings() == ()
    watch.ended("training")
    assert watch.columns == {
        "gpu_memory/generation": 90.0,
        "gpu_memory/training": 105.0,
        "gpu_memory/retries": 3,
    }
    assert len(watch.warnings()) == 1
    watch.ended("generation")
    watch.ended("training")
    assert watch.columns["gpu_memory/training"] == 110.0 and watch.warnings() == ()
    assert watch.columns["gpu_memory/retries"] == 0, "those of the step alone"


def test_pieces_that_no_tensor_needed_are_not_counted() -> None:
    free = iter(Gpu(150 * GB, size * GB) for size in (140, 2, 1))
    unneeded = iter((40 * GB, 38 * GB))
    watch = MemoryWatch(plan(100, 80), Fake(free, unneeded))
    watch.ended("generation")
    assert watch.columns == {"gpu_memory/generation": 98.0} and watch.warnings() == ()
    watch.ended("training")
    assert watch.columns["gpu_memory/training"] == 101.0
    assert "training took 101.0 GB, planned 100.0" in watch.warnings()[0]


def test_a_cpu_is_not_watched() -> None:
    watch = MemoryWatch(plan(0, 0), Fake(repeat(Host(10 * GB, 5 * GB))))
    watch.ended("training")
    assert watch.columns == {} and watch.warnings() == ()
