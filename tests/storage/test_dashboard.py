"""The dashboard of a bucket: what it reads there, how it follows records, and what it says while the store fails."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from lorarl_trainer.dashboard import place as place_module
from lorarl_trainer.dashboard import serve as serve_module
from lorarl_trainer.dashboard.files import Copies
from lorarl_trainer.dashboard.found import NAMES
from lorarl_trainer.dashboard.place import AWAY, Place
from lorarl_trainer.dashboard.row import Row
from lorarl_trainer.progress import CheckpointDone, RunFinished
from lorarl_trainer.storage import Store, open_store
from support.fault_proxy import FOREVER, FaultProxy
from support.records import record_run
from support.s3_server import S3Server
from support.stores import QUICK, STEADY
from unit.trainer.dashboard.recorded import Client, served
from unit.trainer.dashboard.recorded import until as until_within
from unit.trainer.progress.runs import grpo_run, grpo_step, run_finished, run_started, sampled

until = partial(until_within, seconds=30.0)  # a store that failed is asked again after ten
SAVED = CheckpointDone(step=4, uri="s3://x", version=5, sha256="", published_at="")
FAILED = RunFinished(state="failed", step=4, adapter_uri=None, total_seconds=1.0, reason="X", message="CUDA error")


def looked(store: Store, cache: Path) -> Place:
    place = Place("bucket", store, cache)
    place.look()
    return place


def rows(place: Place) -> dict[str, Row]:
    return {row.path: row for row in place.rows()}


def record_whole(store: Store, job: str, folder: Path, steps: int = 5) -> None:
    """A run that ended well, whose folder is a new one."""
    start, *rest = grpo_run(folder, total=steps)
    record_run(store, job, folder / job, [start, sampled(1), *rest], "", attempt=1)


@contextmanager
def dashboard_of(
    s3: S3Server, proxy: FaultProxy, bucket: str, cache: Path, monkeypatch: pytest.MonkeyPatch, **keys: str
) -> Iterator[Client]:
    """Serve the bucket with the keys of the environment; it is looked at more often than in life."""
    for name, value in s3.secret(proxy.url, **keys).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(place_module, "EVERY_SECONDS", 0.1)
    monkeypatch.setattr(place_module, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(serve_module, "RETRIES", QUICK)
    with served([f"s3://{bucket}/team/adapters"], cache) as client:
        yield client


def test_starts_of_a_job_are_one_run_as_the_newest_says(store: Store, tmp_path: Path) -> None:
    begun = [run_started(tmp_path, 8), *(grpo_step(step, 8) for step in range(1, 5)), SAVED]
    record_run(store, "sums", tmp_path / "1", [*begun, FAILED], "", attempt=1)
    resumed = [run_started(tmp_path, 8, resumed_from_step=4), *(grpo_step(step, 8) for step in range(5, 9))]
    record_run(store, "sums", tmp_path / "2", [*resumed, run_finished(tmp_path, 8)], "", attempt=2)
    record_whole(store, "other", tmp_path)
    place = looked(store, tmp_path / "cache")
    found = rows(place)
    assert (found["sums"].state, found["sums"].step, found["sums"].starts) == ("succeeded", 8, 2)
    assert found["sums"].folder == "sums/runs/0002" and found["other"].starts == 1

    record_run(store, "sums", tmp_path / "3", [FAILED], "", attempt=3)  # a later start, which loads nothing
    place.look()
    row = rows(place)["sums"]
    assert (row.state, row.message, row.step, row.starts) == ("failed", "CUDA error", 8, 3)
    assert row.job == "addition" and row.value is not None, "its curves are those that the start before it continued"


def test_a_folder_without_run_json_is_no_record(store: Store, tmp_path: Path) -> None:
    record_whole(store, "sums", tmp_path)
    store.delete(["sums/runs/0001/run.json"])
    store.put("notes/runs/0001/events.jsonl", b'{"event": "Began"}\n')
    store.put("plain/events.jsonl", b'{"event": "Began"}\n')
    assert rows(looked(store, tmp_path / "cache")).keys() == {"plain"}


def test_of_a_record_only_what_a_row_needs_is_read(s3_store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    record_whole(s3_store, "sums", tmp_path, steps=100)
    s3_store.put("sums/iter_0000100/lora_adapter/adapter_model.safetensors", b"x" * 100_000)
    proxy.requests.clear()
    place = looked(s3_store, tmp_path / "cache")
    read = [path.rpartition("/")[2] for method, path in proxy.requests if method == "GET" and "list-type" not in path]
    assert sorted(name.partition("?")[0] for name in read) == ["events.jsonl", "metrics.jsonl", "run_summary.json"]
    assert {name.partition("?")[0] for name in read} < set(NAMES)
    assert rows(place)["sums"].step == 100, "of the metrics, which are longer, the end is read"
    proxy.requests.clear()
    place.look()
    assert all("list-type" in path for _, path in proxy.requests), "nothing has changed"
    assert {method for method, _ in proxy.requests} == {"GET"}, "nothing is ever written"


def test_the_end_of_an_object_is_read_as_it_was_listed(store: Store) -> None:
    store.put("x/metrics.jsonl", b"0123456789")
    (entry,) = store.entries_named(["metrics.jsonl"])
    assert time.time() - entry.changed < 60
    assert store.end_of(entry, 4) == b"6789" and store.end_of(entry, 10) == b"0123456789"
    store.put("x/metrics.jsonl", b"01234567890123456789")
    assert store.end_of(entry, 4) == b"6789"
    store.put("x/metrics.jsonl", b"ab")
    assert store.end_of(entry, 4) in (b"ab", b""), "shorter than listed: the next listing says so"
    store.delete(["x/metrics.jsonl"])
    assert store.end_of(entry, 4) is None


def test_records_that_change_or_vanish_are_seen(
    s3: S3Server, proxy: FaultProxy, bucket: str, s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_whole(s3_store, "first", tmp_path)
    with dashboard_of(s3, proxy, bucket, tmp_path / "cache", monkeypatch) as client:
        until(lambda: "1 run<" in client.get().text)
        record_whole(s3_store, "second", tmp_path)
        until(lambda: "2 runs<" in client.get().text)
        s3_store.delete([entry.path for entry in s3_store.entries("first")])
        until(lambda: "1 run<" in client.get().text)
        (run,) = re.findall(r"run/([0-9a-f]{16})/", client.get().text)
        page, data = client.get(f"run/{run}/"), client.get(f"run/{run}/data.json")
        assert '"steps":[1,2,3,4,5]' in page.text
        assert len(json.loads(data.text)["samples"]["training"]) == 1
        assert client.get(f"run/{run}/data.json", If_None_Match=data.headers["ETag"]).status == 304


def test_a_store_that_is_away_is_said_and_its_runs_stay(
    s3: S3Server, proxy: FaultProxy, bucket: str, s3_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_whole(s3_store, "first", tmp_path)
    with dashboard_of(s3, proxy, bucket, tmp_path / "cache", monkeypatch) as client:
        until(lambda: "1 run<" in client.get().text)
        (run,) = re.findall(r"run/([0-9a-f]{16})/", client.get().text)
        proxy.answer(503, times=FOREVER)
        until(lambda: "503" in client.get().text)
        text = client.get().text
        assert "1 run<" in text and "of the last look that succeeded" in text
        page = client.get(f"run/{run}/")
        assert page.status == 503 and "cannot read: the store said: 503" in page.text
        proxy.heal()
        until(lambda: "503" not in client.get().text)
        assert client.get(f"run/{run}/").status == 200
        proxy.hang(times=3)
        until(lambda: client.get().status == 200 and "1 run<" in client.get().text)


def test_a_bucket_without_rights_is_a_message(
    s3: S3Server, proxy: FaultProxy, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dashboard_of(s3, proxy, bucket, tmp_path / "cache", monkeypatch, AWS_SECRET_ACCESS_KEY="wrong") as client:
        until(lambda: "The store refuses the keys" in client.get().text)
        assert "No runs here yet" not in client.get().text and "wrong" not in client.get().text
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with dashboard_of(s3, proxy, "no-such-bucket", tmp_path / "cache", monkeypatch) as client:
        until(lambda: "There is no bucket" in client.get().text)


def test_runs_that_cannot_be_read_are_tried_again(
    quick_store: Store, s3_store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    for job in ("a", "b"):
        record_whole(s3_store, job, tmp_path)
    proxy.answer(503, times=FOREVER, path="a/runs/0001/run_summary")
    place = looked(quick_store, tmp_path / "cache")
    assert rows(place).keys() == {"b"} and "1 run could not be read" in place.problem
    proxy.heal()
    place.look()
    assert rows(place).keys() == {"a", "b"} and place.problem == ""


def test_a_store_that_goes_away_is_not_asked_for_every_run(
    s3: S3Server, s3_store: Store, proxy: FaultProxy, bucket: str, tmp_path: Path
) -> None:
    for number in range(2 * AWAY):
        s3_store.put(f"r{number}/events.jsonl", b'{"event": "Began"}\n')
    once = replace(STEADY, read_deadline_seconds=0.0)
    hasty = open_store(f"s3://{bucket}/team/adapters", s3.secret(proxy.url), retries=once)
    fault = proxy.answer(503, times=FOREVER, path="events.jsonl")
    place = looked(hasty, tmp_path / "cache")
    assert len(place.problem) > 0 and f" {2 * AWAY} runs" not in place.problem
    assert fault.struck < 2 * AWAY * 3
    proxy.heal()
    place.look()
    assert len(rows(place)) == 2 * AWAY


def test_copies_of_the_runs_seen_last_are_kept(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lorarl_trainer.dashboard import files

    monkeypatch.setattr(files, "MOST_COPIES", 2)
    for job in ("a", "b", "c"):
        record_whole(store, job, tmp_path / "runs")
    place, copies = looked(store, tmp_path / "cache"), Copies(tmp_path / "copies")
    for job in ("a", "b", "a", "c"):
        copy = copies.of(place.store, f"{job}/runs/0001")
        copy.bring(samples=False)
        assert (copy.folder / "metrics.jsonl").is_file()
    kept = sorted(path.parent.name for path in tmp_path.glob("copies/*/metrics.jsonl"))
    assert kept == ([] if place.local else ["1", "3"]), "b's was used least lately; a folder's own files are not copied"
    assert place.store.find("b/runs/0001/metrics.jsonl") is not None
