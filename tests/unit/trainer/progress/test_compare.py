"""Runs beside each other (compare.py), and all runs of a folder (runs.py)."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

import lorarl
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import Noted, Progress, RunFinished
from lorarl_trainer.progress.compare import compare_page, compare_runs, distinct_names
from lorarl_trainer.progress.environment import this_environment
from lorarl_trainer.progress.events_file import EventsFile
from lorarl_trainer.progress.metrics_file import MetricsFile, SummaryFile
from lorarl_trainer.progress.report import report_data as report
from lorarl_trainer.progress.results import LATEST, results
from lorarl_trainer.progress.runs import find_run, find_runs
from lorarl_trainer.progress.tables import age, table
from lorarl_trainer.trained_adapters.source import find_adapter
from unit.contract.manifests import manifest
from unit.trainer.progress.runs import grpo_run, run_started


def made_run(folder: Path, steps: int = 20, **changes: Any) -> Path:
    """Record a run whose manifest has these changes of the smallest one, by dotted path with _ for the dots."""
    first, *rest = grpo_run(folder, total=steps)
    written = yaml.safe_dump(manifest({name.replace("_", "."): value for name, value in changes.items()}))
    with Progress([MetricsFile(folder), SummaryFile(folder)], []) as progress:
        for event in (replace(first, manifest=written), *rest):
            progress.emit(event)
    return folder


def test_a_comparison_has_what_differs_and_how_it_ended(tmp_path: Path) -> None:
    a = made_run(tmp_path / "sums", spec_adapter_rank=8)
    b = made_run(tmp_path / "sums-more", steps=30, spec_adapter_rank=32, metadata_name="other")
    comparison = compare_runs([a, b])
    assert comparison["settings"] == [("spec.adapter.rank", ["8", "32"])]
    results = dict(comparison["results"])
    assert results["steps"] == ["20 of 20", "30 of 30"]
    assert results["held-out score, first"] == ["0.300 at step 0"] * 2
    assert results["held-out score, best"][1] == "0.938 at step 30"
    page = compare_page(comparison)
    assert "sums-more" in page and "default-src 'none'" in page


def test_a_default_that_is_written_out_is_no_difference(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", spec_adapter_rank=32)
    assert compare_runs([a, b])["settings"] == []


def test_a_manifest_of_another_version_is_compared_as_written(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", spec_laterField=1)
    assert compare_runs([a, b])["settings"] == [("spec.laterField", ["–", "1"])]


def test_an_evaluation_with_an_interval_shows_it(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b")
    lines = [json.loads(line) for line in (b / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"eval_score_low": 0.26, "eval_score_high": 0.34}
    (b / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first = dict(compare_runs([a, b])["results"])["held-out score, first"]
    assert first == ["0.300 at step 0", "0.300 (0.260 to 0.340) at step 0"]


def test_results_are_the_best_value_the_latest_rewards_and_the_whole_speed() -> None:
    evaluations = [
        {"step": step, "loss": loss, "hard/score": score, "reward/keys": score / 2, "hard/reward/short": 1.0 - score}
        for step, loss, score in ((0, 2.0, 0.3), (10, 0.5, 0.9), (20, 1.0, 0.6))
    ]
    run = {
        "summary": {"total_steps": 20},
        "columns": {"reward_mean": [9.0, *[0.25] * LATEST, None], "tokens": [100, 300]},
        "evaluations": evaluations,
        "state": "succeeded",
        "last_step": 20,
        "step_count": 20,
        "train_seconds": 8.0,
    }
    found = {label: value for label, (value,) in results([run])}
    best = [found[f"held-out {name}, best"] for name in ("loss", "hard score")]
    assert best == ["0.500 at step 10", "0.900 at step 10"], "the least loss, and the largest score"
    parts = [found[f"held-out {name}, {when}"] for name in ("keys", "hard short") for when in ("first", "latest")]
    assert parts == ["0.150 at step 0", "0.300 at step 20", "0.700 at step 0", "0.400 at step 20"]
    assert found["held-out loss, latest"] == "1.000 at step 20"
    assert found[f"reward, mean of the latest {LATEST} steps"] == "0.250"
    assert found["tokens/s, all steps"] == "500", "200 a step, also of those whose lines are not kept"


def test_names_are_what_tells_the_runs_apart() -> None:
    assert distinct_names(["out/a/run", "out/b/run"]) == ["a", "b"]
    assert distinct_names(["out/a", "more/a"]) == ["out", "more"]
    assert distinct_names(["out/a", "out/a"]) == ["a", "a"]


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    made_run(tmp_path / "old")
    made_run(tmp_path / "demo" / "run", steps=3)
    newest, old = find_runs(tmp_path)
    assert (newest.folder, newest.state, newest.step, newest.total_steps) == (tmp_path / "demo/run", "succeeded", 3, 3)
    assert (old.folder, old.score) == (tmp_path / "old", "held-out score 0.938")
    assert newest.changed >= old.changed


@pytest.mark.parametrize("content", ["", "{", '{"job": "a"', "null", "[]", "3", "[" * 100_000, "\ud800", "NaN"])
def test_a_summary_that_is_not_whole_is_named_and_hides_no_other_run(tmp_path: Path, content: str) -> None:
    """A disk that is full, or a copy that was cut off, leaves one."""
    whole = made_run(tmp_path / "whole", steps=3)
    broken = made_run(tmp_path / "broken", steps=3)
    (broken / "run_summary.json").write_text(content, errors="surrogatepass")
    assert {run.folder: run.state for run in find_runs(tmp_path)} == {whole: "succeeded", broken: "unreadable"}
    assert lorarl.load(whole).state == "succeeded"
    said = re.escape(f"RUN: got {broken}, whose run_summary.json is not whole (")
    for use in (lambda: compare_runs([whole, broken]), lambda: lorarl.load(broken).state, lambda: report(broken)):
        with pytest.raises(InputError, match=said):
            use()


@pytest.mark.parametrize("key", ["job", "state", "base_model", "algorithm", "adapter", "adapter_uri", "manifest"])
def test_a_summary_that_lacks_what_is_shown_is_named(tmp_path: Path, key: str) -> None:
    """As that of another program does."""
    whole, lacking = (made_run(tmp_path / name, steps=3) for name in ("whole", "lacking"))
    summary = json.loads((lacking / "run_summary.json").read_text())
    del summary[key]
    (lacking / "run_summary.json").write_text(json.dumps(summary))
    for use in (lambda: compare_runs([whole, lacking]), lambda: report(lacking)):
        with pytest.raises(InputError, match=re.escape(f"RUN: got {lacking}, whose run_summary.json is not whole (")):
            use()


def test_a_run_whose_process_is_gone_is_not_running(tmp_path: Path) -> None:
    """kill -9 leaves a summary that says running."""
    here = this_environment()
    ended = subprocess.run(
        [sys.executable, "-c", "from lorarl_trainer.progress import *; print(this_environment().process)"],
        capture_output=True,
        text=True,
        check=True,
    )
    for process, state in ((here.process, "running"), (ended.stdout.strip(), "stopped")):
        sink = SummaryFile(tmp_path)
        sink.on_event(replace(run_started(tmp_path), environment=replace(here, process=process)))
        (run,) = find_runs(tmp_path)
        assert run.state == state


def test_a_run_can_be_named_by_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(Path("out/sums"))
    assert find_run("sums") == find_run("out/sums") == Path("out/sums")
    with pytest.raises(InputError, match=r"RUN: got summs, which does not exist, expected.*Runs here: out/sums"):
        find_run("summs")


def test_a_run_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    """`lorarl open` is often typed right after `lorarl run`."""
    log = tmp_path / "logs" / "worker-0.log"
    log.parent.mkdir()
    log.write_text("loading\n")
    waited: list[Path] = []

    def start(folder: Path) -> None:
        waited.append(folder)
        made_run(folder)

    assert find_run(str(tmp_path), start) == tmp_path
    assert waited == [tmp_path]
    (tmp_path / "run_summary.json").unlink()
    os.utime(log, (0, 0))
    with pytest.raises(InputError, match=r"has no run_summary\.json"):
        find_run(str(tmp_path), start)


def test_a_run_that_failed_before_it_trained_says_why(tmp_path: Path) -> None:
    run = tmp_path / "sums"
    with Progress([EventsFile(run), SummaryFile(run)], []) as progress:
        run.mkdir()
        progress.emit(Noted("data: 5 rows"))
        assert [line.state for line in find_runs(tmp_path)] == ["starting"]
        progress.emit(RunFinished(state="failed", step=0, adapter_uri=None, total_seconds=1.0, message="no such model"))
    (line,) = find_runs(tmp_path)
    assert (line.folder, line.job, line.state, line.total_steps) == (run, "sums", "failed", 0)
    (run / "logs").mkdir()
    (run / "logs/worker-0.log").write_text("loading")
    with pytest.raises(InputError, match=r"which failed before it trained, expected .*It said: no such model"):
        find_run(str(run), on_wait=lambda _: pytest.fail("it is not starting"))
    with pytest.raises(InputError, match=r"a run that failed before it trained.*It said: no such model"):
        find_adapter(str(run), None, [])


def test_the_commands_print_tables_and_write_a_page(tmp_path: Path) -> None:
    made_run(tmp_path / "out/a")
    made_run(tmp_path / "out/b", spec_adapter_rank=4)

    def lorarl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lorarl_trainer.cli", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    listed, compared, alone = lorarl("list"), lorarl("compare", "a", "b"), lorarl("compare", "a")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["FOLDER", "out/b", "out/a"]
    assert "spec.adapter.rank" in compared.stdout and f"Page  {tmp_path}/out/compare.html" in compared.stdout
    assert (tmp_path / "out/compare.html").stat().st_size > 50_000
    assert (alone.returncode, alone.stderr[:38]) == (1, "lorarl: RUN: got only a, expected two ")


def test_columns_are_aligned_and_ages_are_short() -> None:
    assert table([("a", "b"), ("long", "c")]) == "a     b\nlong  c"
    now = datetime(2026, 1, 31, tzinfo=UTC)
    passed = [timedelta(seconds=5), timedelta(minutes=7), timedelta(hours=30), timedelta(days=3)]
    assert [age(now - time, now) for time in passed] == ["5 s ago", "7 min ago", "1 day ago", "3 days ago"]
