"""What depends on the step alone."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.schedule import is_due, learning_rate, seed_of


def test_the_learning_rate_rises_over_the_warm_up_and_stays() -> None:
    spec = TrainerSpec(learning_rate=1e-3, warmup_steps=4)
    assert [learning_rate(spec, step, 1000) for step in (1, 2, 4, 5, 1000)] == pytest.approx(
        [2.5e-4, 5e-4, 1e-3, 1e-3, 1e-3]
    )


def test_without_a_warm_up_the_learning_rate_is_there_from_the_first_step() -> None:
    assert learning_rate(TrainerSpec(learning_rate=1e-3), 1, 9) == 1e-3


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [("linear", [0.5, 1.0, 0.775, 0.55, 0.325, 0.1]), ("cosine", [0.5, 1.0, 0.868, 0.55, 0.232, 0.1])],
)
def test_a_schedule_falls_from_the_peak_to_its_share_at_the_last_step(schedule: Any, rates: list[float]) -> None:
    spec = TrainerSpec(
        learning_rate=1.0, warmup_steps=2, steps=6, learning_rate_schedule=schedule, min_learning_rate_share=0.1
    )
    assert [learning_rate(spec, step, 6) for step in range(1, 7)] == pytest.approx(rates, abs=1e-3)
    assert learning_rate(spec, 9, 6) == pytest.approx(0.1), "trainer.steps was lowered during the run"


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_skipped_steps_have_no_rate_and_the_schedule_begins_after_them(schedule: Any) -> None:
    spec = TrainerSpec(learning_rate=1.0, warmup_steps=2, learning_rate_schedule=schedule, min_learning_rate_share=0.1)
    rates = [learning_rate(spec, step, 9, skipped=3) for step in range(1, 10)]
    assert rates == [0.0, 0.0, 0.0, *(learning_rate(spec, step, 6) for step in range(1, 7))]


def test_a_schedule_of_one_step_has_the_peak() -> None:
    assert learning_rate(TrainerSpec(learning_rate=1e-3, learning_rate_schedule="cosine"), 1, 1) == 1e-3


def test_seeds_are_the_same_everywhere_and_differ_by_purpose_and_place() -> None:
    assert seed_of(0, "sample", 1, 0) == 0x6166FCBBE7D3D9
    seeds = {
        seed_of(s, purpose, step, i)
        for s in (0, 1)
        for purpose in ("sample", "dropout")
        for step in range(20)
        for i in range(20)
    }
    assert len(seeds) == 2 * 2 * 20 * 20
    assert all(0 <= seed < 2**56 for seed in seeds)


@pytest.mark.parametrize(("step", "due"), [(1, False), (10, True), (15, False), (20, True), (23, True), (24, True)])
def test_something_is_due_every_so_many_steps_and_at_the_end(step: int, due: bool) -> None:
    assert is_due(step, every=10, last=23) is due
