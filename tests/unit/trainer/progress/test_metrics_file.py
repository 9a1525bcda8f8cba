"""metrics.jsonl, samples.jsonl and run_summary.json."""

import json
import math
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.progress import (
    CheckpointDone,
    EvalDone,
    Event,
    Sampled,
    ScoredSample,
    StepDone,
    Warned,
    WorkersLost,
    is_time_column,
    read_lines,
    read_rows,
    read_summary,
)
from lorarl_trainer.progress.fanout import Progress
from lorarl_trainer.progress.metrics_file import MetricsFile, SummaryFile
from lorarl_trainer.progress.samples import SAMPLES, SamplesFile
from unit.trainer.progress.runs import (
    grpo_run,
    grpo_step,
    run_finished,
    run_started,
    sft_step,
    started_up,
    with_metrics,
)


def play(out_dir: Path, events: Iterable[Event]) -> None:
    with Progress([MetricsFile(out_dir), SummaryFile(out_dir)], []) as progress:
        for event in events:
            progress.emit(event)


def lines(out_dir: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not is_time_column(name)} for row in rows]


def test_each_step_is_read_with_its_evaluation(tmp_path: Path) -> None:
    play(tmp_path, grpo_run(tmp_path, total=20, every=10))
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(21))
    assert [row["step"] for row in rows if "eval_score" in row] == [0, 10, 20]
    assert rows[7]["reward_mean"] == grpo_step(7, 20).metrics["reward_mean"]


def test_a_line_is_on_disk_before_emit_returns(tmp_path: Path) -> None:
    progress = Progress([MetricsFile(tmp_path)], [])
    progress.emit(run_started(tmp_path))
    progress.emit(grpo_step(1))
    assert [row["step"] for row in lines(tmp_path)] == [1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_null(tmp_path: Path, value: float) -> None:
    play(tmp_path, [run_started(tmp_path), with_metrics(grpo_step(1), grad_norm=value, reward_mean=math.nan)])
    assert lines(tmp_path)[0]["grad_norm"] is None
    assert lines(tmp_path)[0]["reward_mean"] is None


def test_a_resumed_run_leaves_the_same_file_as_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    events = grpo_run(whole, total=30)
    play(whole, events)
    play(resumed, events[:20])  # killed in step 18, after the checkpoint of step 10
    other_times = [replace(e, tokens_per_second=1.0) if isinstance(e, StepDone) else e for e in events[13:-1]]
    play(resumed, [run_started(resumed, 30, resumed_from_step=10), *other_times])
    assert without_times(lines(resumed)) == without_times(lines(whole))


def test_new_workers_in_the_same_process_leave_the_same_file_too(tmp_path: Path) -> None:
    whole, replaced = tmp_path / "whole", tmp_path / "replaced"
    events = grpo_run(whole, total=30)
    play(whole, events)
    again = [WorkersLost("a node is gone"), run_started(replaced, 30, resumed_from_step=10), *events[13:]]
    play(replaced, [*events[:20], *again])
    assert without_times(lines(replaced)) == without_times(lines(whole))
    summary = read_summary(replaced)
    assert [start["resumed_from_step"] for start in summary["starts"]] == [None, 10]
    assert summary["warnings"] == ["a node is gone"]


def test_a_kill_during_an_evaluation_leaves_the_line_of_its_step(tmp_path: Path) -> None:
    events = grpo_run(tmp_path, total=10)
    play(tmp_path, events[:12])
    assert [row["step"] for row in lines(tmp_path)] == list(range(11))
    play(tmp_path, [run_started(tmp_path, 10, resumed_from_step=10), events[12]])
    assert [row["step"] for row in lines(tmp_path)] == [*range(11), 10], "lines already written do not change"
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(11))
    evaluated = rows[-1]
    assert evaluated["eval_score"] == pytest.approx(0.3 + 0.65 * (1 - math.exp(-4)))
    assert evaluated["seconds"]["evaluate"] == evaluated["eval_seconds"] == 0.3
    assert evaluated["tokens_per_second"] == 3600.0, "the speed of training"


def test_all_evaluations_of_a_step_count_as_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    step = {"step": 2, "loss": 1.0, "seconds": {"generate": 4.0}}
    found = [{"step": 2, "eval_seconds": 0.5}, {"step": 2, "eval_hard/seconds": 0.25}]
    path.write_text("".join(json.dumps(row) + "\n" for row in (step, *found)))
    (row,) = read_rows(path)
    assert row["seconds"] == {"generate": 4.0, "evaluate": 0.75}


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    play(tmp_path, grpo_run(tmp_path, total=5)[:-2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [row["step"] for row in read_rows(path)] == [0, 1, 2, 3, 4]
    play(tmp_path, [run_started(tmp_path, 5, resumed_from_step=4), grpo_step(5, 5)])
    assert [row["step"] for row in lines(tmp_path)] == [0, 1, 2, 3, 4, 5]


def test_a_folder_that_is_removed_during_the_run_costs_no_line(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with Progress([MetricsFile(out)], []) as progress:
        for event in (run_started(out, 3), grpo_step(1, 3)):
            progress.emit(event)
        shutil.rmtree(out)
        for event in (grpo_step(2, 3), grpo_step(3, 3)):
            progress.emit(event)
    assert [row["step"] for row in lines(out)] == [1, 2, 3]


def test_a_run_from_the_start_drops_the_lines_of_an_earlier_one(tmp_path: Path) -> None:
    play(tmp_path, grpo_run(tmp_path, total=5))
    play(tmp_path, [run_started(tmp_path, 5), grpo_step(1, 5)])
    assert [row["step"] for row in lines(tmp_path)] == [1]


def test_the_summary_says_how_the_run_ended(tmp_path: Path) -> None:
    events = grpo_run(tmp_path, total=30)
    play(tmp_path, [*events[:-1], Warned("row 7 has no prompt"), events[-1]])
    summary = read_summary(tmp_path)
    assert (summary["state"], summary["step"], summary["warnings"]) == ("succeeded", 30, ["row 7 has no prompt"])
    assert (summary["eval_metric"], summary["eval_before"], summary["eval_rows"]) == ("score", 0.3, 512)
    assert summary["eval_after"] == pytest.approx(0.3 + 0.65 * (1 - math.exp(-4)))
    assert summary["train_seconds"] == pytest.approx(
        sum(sum(grpo_step(s, 30).seconds.values()) for s in range(1, 31)) + 3 * 0.3
    )
    assert 0 < summary["mean_abs_logprob_diff"] < summary["worst_mean_abs_logprob_diff"] < 1e-6
    assert summary["adapter_uri"].endswith("iter_0000030/lora_adapter")


def test_the_summary_covers_the_start_after_the_first_step(tmp_path: Path) -> None:
    with Progress([MetricsFile(tmp_path), SummaryFile(tmp_path)], []) as progress:
        progress.emit(run_started(tmp_path))
        assert read_summary(tmp_path)["startup"] is None
        progress.emit(started_up())
        startup = read_summary(tmp_path)["startup"]
    assert (startup["first_token_seconds"], startup["first_update_seconds"]) == (40.5, 45.0)
    assert sum(startup["waited_for"].values()) == pytest.approx(45.0)
    assert startup["waited_for"]["other"] == pytest.approx(0.5)
    assert {"name": "data", "who": "driver", "begin": 1.0, "seconds": 7.0} in startup["parts"]


def test_the_summary_of_a_resumed_run_covers_all_steps(tmp_path: Path) -> None:
    events = grpo_run(tmp_path, total=30)
    play(tmp_path, events[:16])
    play(tmp_path, [run_started(tmp_path, 30, resumed_from_step=10), *events[13:]])
    summary = read_summary(tmp_path)
    assert (summary["resumed_from_step"], summary["eval_before"]) == (10, 0.3)
    assert summary["train_seconds"] == pytest.approx(
        sum(sum(row["seconds"].values()) for row in read_rows(tmp_path / "metrics.jsonl")[1:])
    )


def test_the_summary_of_a_killed_run_says_running(tmp_path: Path) -> None:
    progress = Progress([MetricsFile(tmp_path), SummaryFile(tmp_path)], [])
    progress.emit(run_started(tmp_path))
    assert (read_summary(tmp_path)["state"], read_summary(tmp_path)["adapter_uri"]) == ("running", None)


def test_the_summary_of_a_run_that_trains_has_its_warnings_and_starts(tmp_path: Path) -> None:
    """`lorarl open` shows them before the run ends."""
    for resumed in (None, 2):
        progress = Progress([MetricsFile(tmp_path), SummaryFile(tmp_path)], [])
        changes = ("trainer.steps 2 -> 3",) if resumed else ()
        progress.emit(replace(run_started(tmp_path, resumed_from_step=resumed), changes=changes))
        progress.emit(Warned("the store is slow"))
        summary = read_summary(tmp_path)
        assert (summary["state"], summary["warnings"]) == ("running", ["the store is slow"])
    assert [start["resumed_from_step"] for start in summary["starts"]] == [None, 2]
    assert summary["starts"][1]["at"].endswith("Z")
    assert [start["changes"] for start in summary["starts"]] == [[], ["trainer.steps 2 -> 3"]]
    with Progress([MetricsFile(tmp_path), SummaryFile(tmp_path)], []) as anew:
        anew.emit(run_started(tmp_path))
    assert [start["resumed_from_step"] for start in read_summary(tmp_path)["starts"]] == [None], "it continues none"


def test_a_failed_run_names_its_newest_checkpoint(tmp_path: Path) -> None:
    failed = replace(run_finished(tmp_path, 12), state="failed", adapter_uri=None, message="spec.reward.function: ...")
    checkpoint = CheckpointDone(
        step=10,
        uri="s3://b/j/iter_0000010/lora_adapter",
        version=11,
        sha256="0" * 64,
        published_at="2026-01-31T12:00:00Z",
    )
    play(tmp_path, [run_started(tmp_path, 30), checkpoint, failed])
    summary = read_summary(tmp_path)
    assert (summary["state"], summary["adapter_uri"]) == ("failed", "s3://b/j/iter_0000010/lora_adapter")


def test_the_summary_of_sft_has_losses(tmp_path: Path) -> None:
    first, last = EvalDone(step=0, rows=9, loss=1.8), EvalDone(step=2, rows=9, loss=0.4)
    play(
        tmp_path,
        [
            run_started(tmp_path, 2, algorithm="sft"),
            first,
            sft_step(1, 2),
            sft_step(2, 2),
            last,
            run_finished(tmp_path, 2),
        ],
    )
    summary = read_summary(tmp_path)
    assert (summary["eval_metric"], summary["eval_before"], summary["eval_after"]) == ("loss", 1.8, 0.4)
    assert summary["mean_abs_logprob_diff"] is None


def sampled(step: int, *, evaluation: bool = False, prompt: Any = "1+1", reward: float | None = 0.5) -> Sampled:
    sample = ScoredSample(
        group=0,
        row=7,
        prompt=prompt,
        model_prompt="<s>1+1",
        completion=f"<b>{step}</b>",
        answer="2",
        reward=reward,
        advantage=None if evaluation else -0.5,
        tokens=3,
        truncated=False,
    )
    return Sampled(step=step, samples=(sample,), evaluation=evaluation)


def test_samples_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "and 2+2?"}]
    for events in (
        [run_started(tmp_path), sampled(0, evaluation=True), sampled(1), sampled(2), sampled(3)],
        [run_started(tmp_path, resumed_from_step=2), sampled(3, prompt=chat, reward=None), sampled(3, evaluation=True)],
    ):
        with Progress([SamplesFile(tmp_path)], []) as progress:
            for event in events:
                progress.emit(event)
    rows = read_lines(tmp_path / SAMPLES)
    assert [(row["step"], row["evaluation"]) for row in rows] == [
        (0, True),
        (1, False),
        (2, False),
        (3, False),
        (3, True),
    ]
    assert rows[1] == {
        "step": 1,
        "evaluation": False,
        "group": 0,
        "row": 7,
        "prompt": "1+1",
        "model_prompt": "<s>1+1",
        "completion": "<b>1</b>",
        "answer": "2",
        "reward": 0.5,
        "advantage": -0.5,
        "components": {},
        "failure": None,
        "tokens": 3,
        "truncated": False,
    }
