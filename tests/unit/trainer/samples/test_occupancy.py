"""How full engines were, as metrics of a step."""

from __future__ import annotations

import pytest

from lorarl_trainer.samples.occupancy import Occupancy


def counted(*steps: tuple[int, int, float], preemptions: int = 0) -> Occupancy:
    occupancy = Occupancy(preemptions=preemptions)
    for step in steps:
        occupancy.add_step(*step)
    return occupancy


def test_means_are_over_the_steps_of_all_engines() -> None:
    one = counted((4, 2, 0.5), (2, 0, 0.75), preemptions=3)
    two = counted((6, 1, 0.25), preemptions=1)
    assert Occupancy.over([one, two]).metrics() == {
        "engine/running": pytest.approx(12 / 3),
        "engine/waiting": pytest.approx(3 / 3),
        "engine/kv_cache": 0.75,
        "engine/preemptions": 4.0,
    }


def test_an_engine_without_prompts_counts_nothing() -> None:
    assert Occupancy().metrics() == {}
    assert Occupancy.over([Occupancy(), counted((4, 0, 0.5))]).metrics()["engine/running"] == 4
