"""Which runs a page shows, in which order (view.py), and how a run's files become its row (row.py)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.dashboard.row import Row, row_of, state_now
from lorarl_trainer.dashboard.view import COLUMNS, Group, Run, View, chosen, grouped
from lorarl_trainer.progress.environment import this_environment, this_process
from lorarl_trainer.progress.metrics_file import SummaryFile
from lorarl_trainer.progress.report import report_data
from lorarl_trainer.progress.runs import find_runs
from lorarl_trainer.progress.standing import SILENT_SECONDS, UNKNOWN, state_in
from unit.trainer.progress.runs import run_started


def run(path: str, place: str = "out", **changes: object) -> Run:
    row = Row(path=path, folder=path, job=path.rpartition("/")[2], state="succeeded")._replace(**changes)
    return Run(path, place, row, row.state)


RUNS = [
    run("a", step=3, value=0.5, base_model="qwen", algorithm="grpo", changed=3.0),
    run("b", step=1, value=None, base_model="llama", algorithm="sft", changed=1.0, state="failed"),
    run("c", step=2, value=0.9, base_model="qwen", algorithm="grpo", changed=2.0),
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "acb"),
        ({"turned": ["1"]}, "bca"),
        ({"sort": ["name"]}, "abc"),
        ({"sort": ["result"]}, "cab"),
        ({"sort": ["result"], "turned": ["1"]}, "acb"),
        ({"sort": ["step"]}, "acb"),
        ({"text": ["LLAMA b"]}, "b"),
        ({"state": ["failed"]}, "b"),
        ({"model": ["qwen"], "algorithm": ["grpo"], "sort": ["name"]}, "ac"),
        ({"place": ["elsewhere"]}, ""),
        ({"sort": ["__class__"], "page": ["-7"], "unknown": ["x"]}, "acb"),
    ],
)
def test_runs_are_filtered_and_sorted_and_none_comes_last(query: dict[str, list[str]], expected: str) -> None:
    assert "".join(each.row.job for each in chosen(RUNS, View.of_query(query))) == expected


@given(
    st.dictionaries(st.sampled_from([*View.__dataclass_fields__, "other"]), st.lists(st.text(max_size=12), min_size=1))
)
def test_any_query_is_a_view_and_its_address_is_the_same_view(query: dict[str, list[str]]) -> None:
    from urllib.parse import parse_qs

    view = View.of_query(query)
    again = View.of_query(parse_qs(view.address(page=view.page).removeprefix("?"), keep_blank_values=True))
    assert again == view
    assert view.sort in COLUMNS and view.page >= 1
    chosen(RUNS, view)


def test_the_column_that_is_sorted_by_turns_and_another_starts_afresh() -> None:
    view = View.of_query({"sort": ["name"], "text": ["a b"], "page": ["3"]})
    assert view.sorted_by("name") == "?text=a+b&sort=name&turned=1"
    assert view.sorted_by("step") == "?text=a+b&sort=step"
    assert [view.direction(column) for column in ("name", "step")] == ["ascending", "none"]


def test_runs_of_a_folder_are_one_line_and_a_lone_one_is_itself() -> None:
    trials = [run("sweep/x", changed=5.0), run("sweep/y", state="failed"), run("demo/run"), run("z")]
    group, lone, top = grouped(trials)
    assert isinstance(group, Group) and group.folder == "sweep" and group.changed == 5.0
    assert dict(group.states) == {"succeeded": 1, "failed": 1}
    assert [each.row.path for each in (lone, top) if isinstance(each, Run)] == ["demo/run", "z"]
    assert grouped(trials[:2]) == trials[:2], "all runs of a bucket may be in one folder"
    elsewhere = [run("sweep/x", "other"), run("sweep/y", "other")]
    assert len(grouped([*trials, *elsewhere])) == 4, "a folder of that name in another place is another one"


SUMMARY = {"job": "sums", "state": "running", "total_steps": 9, "base_model": "m", "algorithm": "grpo", "message": ""}
BEGAN, STARTED = {"event": "Began"}, {"event": "RunStarted"}
FAILED = {"event": "RunFinished", "state": "failed", "message": "no such model"}
EMPTY = Row(path="sums", folder="sums", job="sums")


OF_STARTS = pytest.mark.parametrize(
    ("summary", "events", "state"),
    [
        (None, [BEGAN], "starting"),
        (None, [BEGAN, FAILED], "failed"),
        (SUMMARY, [BEGAN, STARTED], "running"),
        (SUMMARY, [BEGAN, STARTED, FAILED], "failed"),
        ({**SUMMARY, "state": "interrupted"}, [BEGAN, STARTED], "starting"),
        ({**SUMMARY, "state": "interrupted"}, [BEGAN, STARTED, FAILED, BEGAN], "starting"),
        ({**SUMMARY, "state": "interrupted"}, [BEGAN, BEGAN, FAILED], "failed"),
        ({**SUMMARY, "state": "succeeded"}, [], "succeeded"),
    ],
    ids=["begins", "failed early", "trains", "failed", "resumes", "again", "failed to resume", "of an older version"],
)


@OF_STARTS
def test_the_events_of_the_newest_start_say_how_a_run_stands(
    summary: dict[str, object] | None, events: list[dict[str, str]], state: str
) -> None:
    assert row_of(EMPTY, summary, [], events).state == state


@OF_STARTS
def test_the_list_and_the_report_of_a_run_say_the_same(
    tmp_path: Path, summary: dict[str, object] | None, events: list[dict[str, str]], state: str
) -> None:
    """A restart that was refused left the end of the start before it in the summary."""
    if summary:
        SummaryFile(tmp_path).on_event(run_started(tmp_path))
        whole = json.loads((tmp_path / "run_summary.json").read_text())
        (tmp_path / "run_summary.json").write_text(json.dumps({**whole, **summary, "starts": []}))
    if events:
        (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run,) = find_runs(tmp_path)
    assert run.state == state == state_in(tmp_path)
    if summary:
        assert report_data(tmp_path)["state"] == state


@pytest.mark.parametrize("alive", [True, False])
def test_a_start_whose_process_is_gone_has_stopped_wherever_it_is_shown(tmp_path: Path, alive: bool) -> None:
    """Also one that resumes: its summary has the end of the start before it."""
    began = {**BEGAN, **this_process()} if alive else {**BEGAN, **this_process(), "process": "1-1"}
    (tmp_path / "events.jsonl").write_text(json.dumps(began) + "\n")
    (run,) = find_runs(tmp_path)
    row = row_of(EMPTY, {**SUMMARY, "state": "interrupted"}, [], [began])
    assert run.state == state_now(row._replace(changed=time.time())) == ("starting" if alive else "stopped")


def test_an_old_evaluation_is_that_of_the_summary() -> None:
    evals = [{"name": "", "metric": "score", "before": 0.2, "after": 0.6}]
    rows = [{"step": 8, "loss": 0.1, "reward_mean": 0.4, "seconds": {"generate": 2.0, "other": 1.0}}]
    row = row_of(EMPTY, {**SUMMARY, "evals": evals}, rows, [])
    assert (row.result, row.value, row.step, row.step_seconds) == ("held-out score", 0.6, 8, 3.0)
    newer = [*rows, {"step": 9, "eval_score": 0.7, "eval_rows": 4}]
    assert row_of(EMPTY, {**SUMMARY, "evals": evals}, newer, []).value == 0.7
    row = row_of(EMPTY, SUMMARY, rows, [])
    assert (row.result, row.value) == ("reward", 0.4)


def test_a_run_that_is_gone_or_silent_is_not_called_running() -> None:
    here = this_environment()
    now = time.time()
    running = EMPTY._replace(state="running", host=here.host, process=here.process, changed=now)
    assert state_now(running, now) == "running"
    assert state_now(running._replace(process="1-1"), now) == "stopped"
    elsewhere = running._replace(host="elsewhere")
    assert state_now(elsewhere, now) == "running"
    assert state_now(elsewhere, now + SILENT_SECONDS + 1) == UNKNOWN
    assert state_now(EMPTY._replace(state="failed"), now + 1e9) == "failed"
