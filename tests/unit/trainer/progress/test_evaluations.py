"""Evaluations from metrics.jsonl to the summary and the console."""

from __future__ import annotations

from lorarl_trainer.progress import EvalDone, is_time_column
from lorarl_trainer.progress.console import eval_text
from lorarl_trainer.progress.evaluations import evaluations_of
from lorarl_trainer.progress.events import row_of


def result(step: int, name: str, score: float) -> EvalDone:
    ends = {"score_low": score - 0.1, "score_high": score + 0.1, "pass_at_4": 0.75}
    return EvalDone(step=step, name=name, rows=50, samples=4, score=score, metrics=ends)


def test_each_evaluation_has_its_columns_and_its_place_in_the_summary() -> None:
    rows = [
        row_of(result(0, "hard", 0.25)) | row_of(EvalDone(step=0, rows=9, score=0.5)),
        {"step": 1, "loss": 0.1},
        row_of(result(2, "hard", 0.5)) | row_of(EvalDone(step=2, rows=9, score=0.75)),
    ]
    assert rows[0]["eval_hard/score"] == 0.25 and rows[0]["eval_score"] == 0.5
    first, second = evaluations_of(rows)
    assert (first["name"], first["before"], first["after"], first["rows"]) == ("", 0.5, 0.75, 9)
    assert first["after_interval"] is None
    assert (second["name"], second["metric"], second["before"], second["after"]) == ("hard", "score", 0.25, 0.5)
    assert second["after_interval"] == [0.4, 0.6] and second["pass_at"] == {4: 0.75} and second["step"] == 2


def test_the_durations_of_evaluations_are_times_by_any_name() -> None:
    columns = [*row_of(result(0, "hard", 0.25)), *row_of(EvalDone(step=0, rows=9, score=0.5))]
    assert {name for name in columns if is_time_column(name)} == {"eval_hard/seconds", "eval_seconds"}


def test_the_console_shows_name_interval_and_pass_at_k() -> None:
    assert eval_text(result(0, "hard", 0.5)) == "hard score 0.500 [0.400, 0.600], pass@4 0.750 (50 rows x 4)"
    loss = EvalDone(step=1, rows=1200, loss=1.5, metrics={"loss_low": 1.25, "loss_high": 1.75})
    assert eval_text(loss) == "held-out loss 1.5000 [1.2500, 1.7500] (1,200 rows)"


def test_completions_without_a_score_are_said_beside_it() -> None:
    """A score of the others alone looks like one of all rows."""
    event = EvalDone(step=0, rows=12, samples=2, unscored=16, score=0.1)
    assert eval_text(event) == "held-out score 0.100 (12 rows x 2, 8 of 24 completions scored)"
    assert row_of(event)["eval_unscored"] == 16
    assert "eval_unscored" not in row_of(EvalDone(step=0, rows=12, score=0.1))
