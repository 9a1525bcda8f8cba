"""The tables of the benchmarks of dpo and of the curriculum, and how far another system's curve is from ours."""

from __future__ import annotations

import pytest

import bench_curriculum
from bench_dpo import CURVES, differences, table

RIGHT = {"0": 0.25, "30": 0.75}


def curves(end: float) -> dict[str, list[float]]:
    return {name: [0.5, end] for name in CURVES.values()}


def test_the_change_of_log_p_is_the_reward_over_beta() -> None:
    runs = [{"beta": 0.1, "seed": 0, "right": RIGHT, "pairs": {"0": 0.5, "30": 0.9}, "curves": curves(-0.2)}]
    assert table(runs).splitlines()[2] == "| 0.1 | 1 | 25.0% | 75.0% | 75.0% to 75.0% | 90.0% | -2.0 | -2.0 |"


def test_curves_are_compared_with_those_of_the_same_seed() -> None:
    runs = [{"beta": 0.1, "seed": seed, "curves": curves(float(seed))} for seed in (0, 1)]
    peer = {"beta": 0.1, "seed": 1, "curves": curves(1.25)}
    assert dict(differences(runs, peer)) == pytest.approx(dict.fromkeys(CURVES.values(), 0.25))


def test_the_table_of_the_curriculum_has_both() -> None:
    without = {"seed": 0, "curriculum": False, "right": RIGHT, "signal_share": 0.5}
    with_it = {"seed": 0, "curriculum": True, "right": RIGHT, "signal_share": 0.6, "curriculum/skipped_share": 0.3}
    assert bench_curriculum.table([without, with_it]).splitlines()[2:] == [
        "| no | 1 | 25.0% | 75.0% | 75.0% to 75.0% | 50.0% |  |",
        "| yes | 1 | 25.0% | 75.0% | 75.0% to 75.0% | 60.0% | 30.0% |",
    ]
