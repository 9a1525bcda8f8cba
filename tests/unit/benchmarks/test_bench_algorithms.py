"""What `make recipes` reads from a run's curve, and the table that it writes."""

from __future__ import annotations

import pytest

from bench_algorithms import RECIPES, gain, held_out_score, table


@pytest.mark.parametrize(
    ("row", "score"),
    [
        ({"step": 3, "loss": 0.1}, None),
        ({"step": 10, "eval_score": 0.25}, 0.25),
        ({"step": 10, "eval_answers/score": 0.5}, 0.5),
        ({"step": 10, "eval_score": 0.9, "eval_answers/score": 0.5}, 0.5),  # of pairs, and of what it writes
    ],
)
def test_the_score_is_that_of_completions(row: dict[str, float], score: float | None) -> None:
    assert held_out_score(row) == score


def test_the_table_has_the_gain_and_what_is_special() -> None:
    runs = [
        {"type": kind, "seed": 0, "changes": list(RECIPES[kind]), "right": {"0": 0.25, "30": 0.75}}
        for kind in ("grpo", "distillation", "dpo")
    ]
    assert gain(runs[0]) == 0.5
    lines = table(runs).splitlines()
    assert lines[2] == "| `grpo` |  | 1 | 25.0% | 75.0% | +50.0 (+50.0 to +50.0) |"
    assert lines[3].startswith("| `distillation` |  | 1 |")
    assert lines[4].startswith("| `dpo` | pairs, `rollout.promptsPerStep=128`, `dpo.beta=3.0` | 1 |")
