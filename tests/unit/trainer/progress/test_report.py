"""report.html is complete and needs no other file, for every kind of run."""

import base64
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lorarl_trainer.progress import EvalDone, Event, Progress, StepDone, Warned, write_report
from lorarl_trainer.progress.plots import binned, outcome, unplotted_metrics
from lorarl_trainer.progress.records import METRICS, MetricsFile, SummaryFile, read_rows
from lorarl_trainer.progress.trackers import scalars_of
from unit.trainer.progress.runs import grpo_run, run_finished, run_started, sft_step, started_up, with_metrics

pytestmark = pytest.mark.slow

PNG = b"\x89PNG\r\n\x1a\n"


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


def report_of(out_dir: Path, events: list[Event]) -> tuple[str, list[Path]]:
    with Progress([MetricsFile(out_dir), SummaryFile(out_dir)], []) as progress:
        for event in events:
            progress.emit(event)
    files = write_report(out_dir)
    return (out_dir / "report.html").read_text(), files


def test_the_report_breaks_down_the_time_of_the_start(tmp_path: Path) -> None:
    first, *rest = grpo_run(tmp_path, total=3)
    html, _ = report_of(tmp_path, [first, started_up(), *rest])
    assert "first token after 40.5 s, first update after 45.0 s" in html
    assert (
        '<td>worker 0</td><td class="number">22.00 s</td>\n'
        '<td><div class="bar" style="margin-left: 40.0%; width: 48.9%">'
    ) in html


@pytest.mark.parametrize(
    ("make", "pictures", "image"),
    [
        (lambda out: grpo_run(out, total=1), 5, "reward.png"),
        (lambda out: grpo_run(out, total=3), 5, "reward.png"),
        pytest.param(lambda out: grpo_run(out, total=10_000, every=500), 5, "reward.png", marks=pytest.mark.slow),
        (lambda out: with_nan_rewards(grpo_run(out, total=50)), 5, "reward.png"),
        (sft_run, 3, "loss.png"),
    ],
    ids=["1 step", "3 steps", "10,000 steps", "NaN rewards", "sft"],
)
def test_the_report_is_one_file_that_needs_no_network(
    tmp_path: Path, make: Callable[[Path], list[Event]], pictures: int, image: str
) -> None:
    html, files = report_of(tmp_path, make(tmp_path))
    assert [path.name for path in files] == ["report.html", image]
    assert files[1].read_bytes().startswith(PNG)
    sources = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert len(sources) == pictures
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    for source in sources:
        svg = base64.b64decode(source.partition(",")[2]).decode()
        assert "</svg>" in svg
        assert not re.search(r"""href="(?!#)""", svg)
    assert len(html) < 1_000_000


def test_the_report_has_the_main_results(tmp_path: Path) -> None:
    html, _ = report_of(tmp_path, grpo_run(tmp_path, total=30))
    for text in (
        "0.300 → 0.938",
        "30 / 30",
        "rank 16, alpha 32, on 12 modules",
        "225,280 trainable of 1,022,080",
        "kind: LoRARLJob",
    ):
        assert text in html
    assert "vllm serve /models/tiny --enable-lora --max-lora-rank 16" in html
    assert "PeftModel.from_pretrained(model, " in html


def test_a_run_that_failed_before_its_first_step_has_a_report(tmp_path: Path) -> None:
    failed = replace(
        run_finished(tmp_path, 0), state="failed", adapter_uri=None, message="spec.data.train.uri: got no rows"
    )
    html, files = report_of(tmp_path, [run_started(tmp_path), failed])
    assert [path.name for path in files] == ["report.html"]
    assert "spec.data.train.uri: got no rows" in html
    assert "Use the adapter" not in html


def test_untrusted_text_is_escaped(tmp_path: Path) -> None:
    html, _ = report_of(
        tmp_path, [*grpo_run(tmp_path)[:-1], Warned("<script>alert(1)</script>"), run_finished(tmp_path, 3)]
    )
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


@pytest.mark.slow
def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    first, _ = report_of(tmp_path, grpo_run(tmp_path, total=30))
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == first


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
    report_of(tmp_path, steps)
    rows = [row for row in read_rows(tmp_path / METRICS) if "loss" in row]
    assert [row["surprise"] for row in rows] == [0.5] * 3
    assert {scalars_of(e)["surprise"] for e in steps if isinstance(e, StepDone)} == {0.5}
    assert "surprise" in unplotted_metrics(rows, "grpo")
