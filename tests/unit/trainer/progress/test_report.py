"""report.html is complete and needs no other file, for every kind of run. test_page.py looks at it in a browser."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.loading import serve_command
from lorarl_trainer.progress import EvalDone, Event, FurtherSequence, Progress, StepDone, Warned, write_report
from lorarl_trainer.progress.events import scalars_of
from lorarl_trainer.progress.metrics_file import METRICS, MetricsFile, SummaryFile
from lorarl_trainer.progress.page import FOLDER, UPLOT, json_in_html
from lorarl_trainer.progress.plots import binned, outcome
from lorarl_trainer.progress.report import MAX_POINTS, curves, report_data
from lorarl_trainer.progress.samples import SAMPLES, SamplesFile, samples_by_step, thinned
from unit.trainer.progress.runs import (
    grpo_run,
    grpo_step,
    run_finished,
    run_started,
    sampled,
    sft_step,
    started_up,
    with_metrics,
)

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"
DIGESTS = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


def with_nan_rewards(events: list[Event]) -> list[Event]:
    return [
        with_metrics(e, reward_mean=math.nan) if isinstance(e, StepDone) else e
        for e in events
        if not isinstance(e, EvalDone)
    ]


def sft_run(out_dir: Path) -> list[Event]:
    steps = [
        event
        for s in range(1, 61)
        for event in (sft_step(s, 60), EvalDone(step=s, rows=9, loss=1.0 / s))[: 1 + (s % 20 == 0)]
    ]
    return [
        run_started(out_dir, 60, algorithm="sft"),
        EvalDone(step=0, rows=9, loss=1.8),
        *steps,
        run_finished(out_dir, 60),
    ]


def record(out_dir: Path, events: list[Event]) -> None:
    with Progress([MetricsFile(out_dir), SamplesFile(out_dir), SummaryFile(out_dir)], []) as progress:
        for event in events:
            progress.emit(event)


def data_of(out_dir: Path) -> dict[str, Any]:
    """Return the data inside the page."""
    html = (out_dir / "report.html").read_text()
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.mark.parametrize(
    ("make", "image"),
    [
        (lambda out: grpo_run(out, total=1), "reward.png"),
        (lambda out: grpo_run(out, total=10_000, every=500), "reward.png"),
        (lambda out: with_nan_rewards(grpo_run(out, total=50)), "reward.png"),
        (sft_run, "loss.png"),
    ],
    ids=["1 step", "10,000 steps", "NaN rewards", "sft"],
)
def test_the_report_is_one_file_that_needs_no_network(
    tmp_path: Path, make: Callable[[Path], list[Event]], image: str
) -> None:
    record(tmp_path, make(tmp_path))
    files = write_report(tmp_path)
    html = files[0].read_text()
    assert [path.name for path in files] == ["report.html", image]
    assert files[1].read_bytes().startswith(PNG)
    assert not re.search(r"""<[^>]+\s(?:src|href)=["'](?!#|data:,)""", html)
    assert "default-src 'none'" in html
    assert len(html) < 1_500_000


def test_the_report_has_the_main_results(tmp_path: Path) -> None:
    first, *rest = grpo_run(tmp_path, total=30)
    record(tmp_path, [first, started_up(), *rest])
    write_report(tmp_path)
    data = data_of(tmp_path)
    summary = data["summary"]
    assert (data["state"], data["last_step"], summary["total_steps"]) == ("succeeded", 30, 30)
    assert (summary["eval_before"], round(summary["eval_after"], 3)) == (0.3, 0.938)
    assert data["modules"][0] == "model.layers.{0-3}.self_attn.q_proj"
    assert summary["startup"]["first_update_seconds"] == 45.0
    codes = dict(data["snippets"])
    assert f"{serve_command()} /models/tiny --enable-lora --max-lora-rank 16" in codes["vLLM"]
    assert "PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(" in codes["Transformers and PEFT"]
    assert [row["step"] for row in data["evaluations"]] == [0, 10, 20, 30]


def test_a_run_that_failed_before_its_first_step_has_a_report(tmp_path: Path) -> None:
    failed = replace(
        run_finished(tmp_path, 0), state="failed", adapter_uri=None, message="spec.data.train.uri: got no rows"
    )
    record(tmp_path, [run_started(tmp_path), failed])
    assert [path.name for path in write_report(tmp_path)] == ["report.html"]
    data = data_of(tmp_path)
    assert (data["summary"]["message"], data["snippets"]) == ("spec.data.train.uri: got no rows", [])


def test_a_run_of_an_earlier_version_has_a_report(tmp_path: Path) -> None:
    """Its files lack what was added later."""
    record(tmp_path, grpo_run(tmp_path))
    path = tmp_path / "run_summary.json"
    summary = json.loads(path.read_text())
    for name in ("starts", "finished_at", "data", "reward"):
        del summary[name]
    path.write_text(json.dumps(summary))
    old = {
        "step": 1,
        "evaluation": False,
        "prompt": "1+1=",
        "completion": "2",
        "answer": "2",
        "reward": 1.0,
        "tokens": 1,
    }
    (tmp_path / SAMPLES).write_text(json.dumps(old) + "\n")
    data = report_data(tmp_path)
    assert data["summary"]["starts"] == []
    assert data["samples"]["training"][0]["groups"][0]["model_prompt"] == "1+1="


def test_untrusted_text_cannot_leave_its_place(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script>"
    record(tmp_path, [*grpo_run(tmp_path)[:-1], Warned(nasty), run_finished(tmp_path, 3)])
    write_report(tmp_path)
    assert nasty not in (tmp_path / "report.html").read_text()
    assert data_of(tmp_path)["summary"]["warnings"] == [nasty]
    assert "<" not in json_in_html({"a": "<!--<script>"})


def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    record(tmp_path, grpo_run(tmp_path, total=30))
    write_report(tmp_path)
    first = (tmp_path / "report.html").read_text()
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == first


def test_a_long_run_is_averaged_over_equal_shares() -> None:
    rows = [{"step": step, "loss": float(step), "seconds": {}} for step in range(1, 2 * MAX_POINTS + 1)]
    made = curves(rows)
    assert (len(made["steps"]), made["steps"][0], made["steps"][-1]) == (MAX_POINTS, 2, 2 * MAX_POINTS)
    assert made["columns"]["loss"][0] == 1.5


def test_samples_of_a_step_are_whole_groups(tmp_path: Path) -> None:
    record(tmp_path, [run_started(tmp_path), sampled(1, groups=2), sampled(1, evaluation=True)])
    samples = samples_by_step(tmp_path)
    (step,) = samples["training"]
    assert [len(group["completions"]) for group in step["groups"]] == [4, 4]
    assert step["groups"][0]["completions"][0]["advantage"] == -0.5
    assert "advantage" not in samples["held_out"][0]["groups"][0]["completions"][0]
    assert samples["left_out"] == []
    assert samples_by_step(tmp_path, most_bytes=1)["left_out"] == []  # a first and a last step are always kept


def test_the_sequences_of_an_episode_are_one_line_and_one_completion(tmp_path: Path) -> None:
    one, *others = sampled(1).samples
    further = FurtherSequence(model_prompt="again", completion="more", tokens=3, truncated=True)
    with_more = replace(sampled(1), samples=(replace(one, further=(further,)), *others))
    record(tmp_path, [run_started(tmp_path), with_more])
    lines = [json.loads(line) for line in (tmp_path / SAMPLES).read_text().splitlines()]
    assert lines[0]["further"] == [{"model_prompt": "again", "completion": "more", "tokens": 3, "truncated": True}]
    assert not any("further" in line for line in lines[1:])
    first, *rest = samples_by_step(tmp_path)["training"][0]["groups"][0]["completions"]
    assert first["further"] == lines[0]["further"] and not any("further" in one for one in rest)


def test_too_many_samples_lose_every_second_step_but_not_the_ends() -> None:
    assert list(thinned({step: [b"x" * 10] for step in range(1, 11)}, 50)) == [1, 5, 9, 10]
    assert list(thinned({step: [b"x" * 10] for step in range(1, 11)}, 100)) == list(range(1, 11))


def test_uplot_is_as_npm_published_it() -> None:
    """npm pack uplot@1.6.32 gives these files."""
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (FOLDER / UPLOT).iterdir()}
    assert there == DIGESTS


def test_a_single_evaluation_does_not_hide_the_training_curve() -> None:
    steps = [{"step": step, "reward_mean": 0.5} for step in range(1, 31)]
    left, right = outcome([{"step": 0, "eval_score": 0.3}, *steps], "grpo").axes[0].get_xlim()
    assert left < 0 and right > 30


def test_bins_average_finite_values() -> None:
    steps = np.arange(1.0, 9.0)
    values = np.array([1, 3, np.nan, 5, np.nan, np.nan, 2, 4])
    x, mean, low, high = binned(steps, values, 4)
    np.testing.assert_array_equal(x, [1.5, 3.5, 5.5, 7.5])
    np.testing.assert_array_equal(mean, [2, 5, np.nan, 3])
    np.testing.assert_array_equal(low, [1, 5, np.nan, 2])
    np.testing.assert_array_equal(high, [3, 5, np.nan, 4])


def test_a_new_metric_reaches_file_trackers_and_report_by_its_name(tmp_path: Path) -> None:
    """Only the code that computes a metric knows its name."""
    steps = [with_metrics(e, surprise=0.5) if isinstance(e, StepDone) else e for e in grpo_run(tmp_path)]
    record(tmp_path, steps)
    rows = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert [row["surprise"] for row in rows if "loss" in row] == [0.5] * 3
    assert {scalars_of(e)["surprise"] for e in steps if isinstance(e, StepDone)} == {0.5}
    assert report_data(tmp_path)["columns"]["surprise"] == [0.5] * 3
    assert grpo_step(1).metrics.keys() <= report_data(tmp_path)["columns"].keys()
