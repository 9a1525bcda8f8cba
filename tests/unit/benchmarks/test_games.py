"""What the benchmark of the games makes of raw figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_games

ROOT = Path(__file__).parents[3]


def run(seed: int, score: float, won: float, invalid: float) -> dict[str, Any]:
    evaluations = [
        {"step": 0, "score": 0.1, "won": 0.05 * seed, "invalid": 2.0},
        {"step": 10, "score": score, "won": won, "invalid": invalid},
    ]
    return {"game": "guess-the-number", "seed": seed, "evaluations": evaluations}


def test_a_game_has_the_mean_over_its_seeds_and_their_range() -> None:
    row = bench_games.row_of("guess-the-number", [run(0, 0.9, 0.8, 0.5), run(2, 0.7, 0.6, 0.25)])
    assert row == (
        "| Guess The Number | 0, 2 | 0.10 | 0.80 (0.70 to 0.90) | 5% | 70% (60% to 80%) | 2.00 | 0.38 (0.25 to 0.50) |"
    )


def test_a_runs_figures_are_those_of_its_metrics(tmp_path: Path) -> None:
    measured = {"eval_score": 0.5, "eval_reward/won": 0.25, "eval_reward/invalid_moves": 1.5}
    step = {"reward_mean": 0.75, "episode/turns": 3.5, "mean_abs_logprob_diff": 0.01}
    rows = [{"step": 0, **measured}, {"step": 1, "seconds": {"generate": 2.0, "optimizer": 0.5}, **step, **measured}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps, evaluations = bench_games.figures_of(tmp_path / "metrics.jsonl")
    assert steps == [{"seconds": 2.5, "reward": 0.75, "turns": 3.5, "drift": 0.01}]
    assert evaluations == [{"step": at, "score": 0.5, "won": 0.25, "invalid": 1.5} for at in (0, 1)]


def test_the_page_shows_the_recorded_figures() -> None:
    page = (ROOT / bench_games.DOCUMENT).read_text()
    assert bench_games.markdown(bench_games.read(ROOT / bench_games.RAW)) in page
