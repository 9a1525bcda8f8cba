"""The runs of a folder are followed (place.py), and kept on disk between two starts (index.py)."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.dashboard import place as place_module
from lorarl_trainer.dashboard.place import Place
from lorarl_trainer.dashboard.row import UNREADABLE, Row, read_row
from lorarl_trainer.progress import Noted, RunFinished
from lorarl_trainer.storage import LocalStore
from lorarl_trainer.threads import begin
from support.other_user import as_a_user, open_folder
from unit.trainer.dashboard.recorded import record, recorded
from unit.trainer.progress.runs import grpo_step, run_started

FAILED = RunFinished(state="failed", step=0, adapter_uri=None, total_seconds=1.0, message="no such model")


def looked(folder: Path, cache: Path) -> Place:
    place = Place(str(folder), LocalStore(folder), cache)
    place.look()
    return place


def rows(place: Place) -> dict[str, Row]:
    return {row.path: row for row in place.rows()}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that were read, by their paths."""
    seen: list[str] = []

    def read(store: Any, found: Any, name: str) -> Row | None:
        seen.append(found.path)
        return read_row(store, found, name)

    monkeypatch.setattr(place_module, "read_row", read)
    return seen


def test_runs_at_any_depth_have_their_figures(out: Path, cache: Path) -> None:
    recorded(out / "sums", 5)
    recorded(out / "sweep" / "rank=8", 3, job="sums-8", algorithm="dapo")
    found = rows(looked(out, cache))
    sums = found["sums"]
    assert (sums.job, sums.state, sums.step, sums.total_steps) == ("addition", "succeeded", 5, 5)
    assert (sums.base_model, sums.algorithm, sums.result) == ("/models/tiny", "grpo", "held-out score")
    assert sums.value == pytest.approx(0.938, abs=1e-3) and sums.step_seconds == pytest.approx(0.7, abs=0.1)
    assert (found["sweep/rank=8"].job, found["sweep/rank=8"].algorithm) == ("sums-8", "dapo")


def test_a_folder_that_is_a_run_itself_is_shown(out: Path, cache: Path) -> None:
    recorded(out)
    assert rows(looked(out, cache))[""].job == "addition"


def test_only_what_has_changed_is_read_again(out: Path, cache: Path, reads: list[str]) -> None:
    for name in ("a", "b", "c"):
        recorded(out / name)
    place = looked(out, cache)
    assert sorted(reads) == ["a", "b", "c"]
    reads.clear()
    place.look()
    assert reads == []
    with (out / "b" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 6, "loss": 0.1, "reward_mean": 0.2, "seconds": {"other": 1.0}}) + "\n")
    shutil.rmtree(out / "c")
    recorded(out / "d")
    place.look()
    assert sorted(reads) == ["b", "d"]
    found = rows(place)
    assert found.keys() == {"a", "b", "d"} and found["b"].step == 6


def test_the_next_start_knows_the_runs_before_it_looks(out: Path, cache: Path, reads: list[str]) -> None:
    recorded(out / "a")
    before = rows(looked(out, cache))
    reads.clear()
    again = Place(str(out), LocalStore(out), cache)
    assert rows(again) == before and again.doing() == ""
    shutil.rmtree(out / "a")
    again.look()
    assert (rows(again), reads) == ({}, [])
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o077 == 0, "names of runs and models are for this user alone"


def damaged(text: str) -> list[str]:
    read = json.loads(text)
    (path,) = read["runs"]
    of_another_version = {**read, "fields": ["path"]}
    short = {**read, "runs": {path: read["runs"][path][:1]}}
    return [text[: len(text) // 2], "", "[]", "null", json.dumps(of_another_version), json.dumps(short)]


@pytest.mark.parametrize("damage", range(6))
def test_a_corrupt_index_is_made_again(out: Path, cache: Path, damage: int) -> None:
    recorded(out / "a")
    before = rows(looked(out, cache))
    (kept,) = cache.iterdir()
    kept.write_text(damaged(kept.read_text())[damage])
    again = looked(out, cache)
    assert rows(again) == before and again.problem == ""
    assert rows(Place(str(out), LocalStore(out), cache)) == before


def test_a_cache_that_cannot_be_written_costs_time_only(out: Path, tmp_path: Path) -> None:
    recorded(out / "a")
    (tmp_path / "file").write_text("")
    place = looked(out, tmp_path / "file")
    assert rows(place).keys() == {"a"} and place.problem == ""


def test_half_written_files_leave_a_row(out: Path, cache: Path) -> None:
    metrics = recorded(out / "cut", 5) / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-60])
    summary = recorded(out / "half", 5) / "run_summary.json"
    summary.write_bytes(summary.read_bytes()[:200])
    (recorded(out / "strange") / "run_summary.json").write_text("[1, 2]")
    found = rows(looked(out, cache))
    assert (found["cut"].state, found["cut"].step) == ("succeeded", 5), "the evaluation of step 5 was cut"
    for name in ("half", "strange"):
        assert found[name].state == UNREADABLE and "of another version of lorarl" in found[name].message
        assert found[name].job == name


def test_a_run_of_an_older_version_has_a_row(out: Path, cache: Path) -> None:
    """One without events, starts, or a list of its evaluations."""
    folder = recorded(out / "old")
    (folder / "events.jsonl").unlink()
    summary = json.loads((folder / "run_summary.json").read_text())
    for name in ("starts", "evals", "warnings", "best", "finished_at", "message"):
        del summary[name]
    (folder / "run_summary.json").write_text(json.dumps(summary))
    row = rows(looked(out, cache))["old"]
    assert (row.state, row.step, row.result) == ("succeeded", 5, "held-out score")


def test_a_start_that_failed_or_has_not_trained_has_a_row(out: Path, cache: Path) -> None:
    record(out / "begins", [Noted("data: 5 rows")])
    record(out / "failed", [Noted("data: 5 rows"), FAILED])
    record(out / "trains", [run_started(out, 9), grpo_step(1, 9)])
    found = rows(looked(out, cache))
    assert (found["begins"].state, found["begins"].total_steps) == ("starting", 0)
    assert (found["failed"].state, found["failed"].message) == ("failed", "no such model")
    # A run that a test plays has an end only when its progress is closed; its process is not known.
    assert (found["trains"].step, found["trains"].total_steps) == (1, 9)


def test_a_folder_that_is_gone_is_said_and_its_return_is_seen(out: Path, cache: Path) -> None:
    place = looked(out, cache)
    assert "no such folder" in place.problem
    recorded(out / "a")
    place.look()
    assert (place.problem, list(rows(place))) == ("", ["a"])
    out.rename(out.with_name("moved"))
    place.look()
    assert "no such folder" in place.problem


def test_a_run_that_may_not_be_read_hides_no_other() -> None:
    with open_folder() as folder:
        out = folder / "out"
        for name in ("a", "b", "secret/c"):
            recorded(out / name)
        (out / "b" / "run_summary.json").chmod(0)
        (out / "secret").chmod(0)
        found, problem = as_a_user(_looked_by_another, out, folder / "cache")
    assert found == ["a"]
    assert "1 run could not be read, which is tried again" in problem
    assert "permission denied" in problem


def _looked_by_another(out: Path, cache: Path) -> tuple[list[str], str]:
    place = looked(out, cache)
    return list(rows(place)), place.problem


def test_no_place_is_looked_at_while_no_page_is_open(
    out: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, reads: list[str]
) -> None:
    recorded(out / "a")
    monkeypatch.setattr(place_module, "FOLDER_SECONDS", 0.0)
    place, waits = Place(str(out), LocalStore(out), cache), threading.Semaphore(0)

    class Asked(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.release()
            return super().wait(timeout)

    monkeypatch.setattr(place, "_asked", Asked())
    begin(place.follow)
    assert waits.acquire(timeout=30), "after the first look it waits for a page"
    recorded(out / "b")
    assert reads == ["a"]
    place.rows()
    assert waits.acquire(timeout=30) and reads == ["a", "b"]


def test_a_run_is_found_by_its_id_without_a_look_at_all_others(
    out: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each id is computed once: a page of one run asked for the ids of all."""
    for number in range(20):
        record(out / f"run-{number}", [run_started(out / f"run-{number}", 9)])
    place = looked(out, cache)
    hashed: list[bytes] = []
    sha256 = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data: hashed.append(data) or sha256(data))
    ids = {path: place.id_of(path) for path in rows(place)}
    for path, run_id in ids.items():
        found = place.row_of(run_id)
        assert found is not None and found.path == path
    assert len(hashed) == 20
    record(out / "new", [run_started(out / "new", 9)])
    place.look()
    new = sha256(f"{place.store.uri}\nnew".encode()).hexdigest()[:16]
    hashed.clear()
    assert place.row_of(new) == rows(place)["new"]
    assert place.row_of("0123456789abcdef") is None
    assert [data for data in hashed if data.startswith(place.store.uri.encode())] == [
        f"{place.store.uri}\nnew".encode()
    ]
    shutil.rmtree(out / "new")
    place.look()
    assert place.row_of(new) is None
