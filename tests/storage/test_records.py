"""The record of a run in its job's folder: published in the background, continued, bounded, and deleted with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.checkpoint.deletion import delete_job
from lorarl_trainer.checkpoint.runs import RUNS
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.progress import CheckpointDone, Event, RecordOpened, Warned
from lorarl_trainer.record import contents
from lorarl_trainer.record.folder import RecordFolder, claim_folder
from lorarl_trainer.record.publisher import RecordPublisher
from lorarl_trainer.storage import Data, Store
from support.checkpoints import IDENTITY, JOB, checkpoint
from support.cluster.processes import until
from support.fault_proxy import FaultProxy

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SAVED = CheckpointDone(step=10, uri="", version=2, sha256="", published_at="")
PATIENCE = 30.0


class Heard:
    """What a publisher has emitted."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def wait_for(self, kind: type[Event], count: int = 1) -> Event:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE), self._events
            return self.of(kind)[-1]

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self._events if isinstance(event, kind)]


def claimed(store: Store, attempt: int | None = None, uid: str | None = "mine") -> RecordFolder:
    owner = Owner(JOB, uid)
    return claim_folder(CheckpointStore(store, JOB, keep=None, identity={}, owner=owner), owner, attempt)


def publisher(store: Store, out_dir: Path, log: Path | None = None) -> RecordPublisher:
    return RecordPublisher(lambda: claimed(store), out_dir, log)


def paths(store: Store, folder: str = JOB) -> list[str]:
    return [entry.path.removeprefix(f"{folder}/") for entry in store.entries(folder)]


def write(out_dir: Path, **files: str) -> None:
    out_dir.mkdir(exist_ok=True)
    for name, text in files.items():
        (out_dir / f"{name}.jsonl").write_text(text)


def checkpoints(store: Store, uid: str = "mine") -> CheckpointStore:
    return CheckpointStore(store, JOB, keep=2, identity=IDENTITY, owner=Owner(JOB, uid))


def test_each_start_has_a_folder_of_its_own(store: Store) -> None:
    """Numbered by the operator's attempt, but a queue may start an attempt twice."""
    assert [claimed(store, attempt).name for attempt in (1, 2, 2, 3, 7, None)] == [
        "0001",
        "0002",
        "0003",
        "0004",
        "0007",
        "0008",
    ]


def test_starts_at_the_same_moment_share_no_folder(store: Store) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(claimed(store, 1).name)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == [f"{number:04}" for number in range(1, 7)]


def test_a_run_is_published_and_the_next_start_continues_it(store: Store, tmp_path: Path) -> None:
    first, second, log = tmp_path / "first", tmp_path / "second", tmp_path / "driver"
    write(first, metrics='{"step": 1}\n', samples='{"step": 1, "evaluation": false}\n', notes="not ours")
    (first / "starts").mkdir()
    (first / "starts" / "0001-after-step-0.yaml").write_text("kind: LoRARLJob")
    log.write_text("step 1\n")
    run, heard = publisher(store, first, log), Heard()
    run.start(heard)
    opened = heard.wait_for(RecordOpened)
    assert opened == RecordOpened(store.uri_of(f"{JOB}/runs/0001"))
    write(first, metrics='{"step": 1}\n{"step": 2}\n')
    assert run.finish(PATIENCE) is None

    written = ["logs/driver.log", "metrics.jsonl", "run.json", "samples.jsonl", "starts/0001-after-step-0.yaml"]
    assert paths(store, f"{JOB}/{RUNS}/0001") == written
    assert store.get(f"{JOB}/runs/0001/metrics.jsonl") == b'{"step": 1}\n{"step": 2}\n'
    assert json.loads(store.get(f"{JOB}/runs/0001/run.json") or b"")["jobUid"] == "mine"

    claimed(store)  # a start that failed before its first step has nothing to continue
    run = publisher(store, second)
    run.start(Heard())
    assert run.restore() is None
    assert (second / "metrics.jsonl").read_bytes() == (first / "metrics.jsonl").read_bytes()
    assert (second / "starts" / "0001-after-step-0.yaml").exists()
    assert not (second / "logs").exists(), "a log is of one start"
    assert run.finish(PATIENCE) is None
    assert "metrics.jsonl" in paths(store, f"{JOB}/{RUNS}/0003")


def test_a_folder_with_a_run_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    """`lorarl run` on the same machine: what is here is newer than what was published."""
    claimed(store).put("metrics.jsonl", b"older")
    write(tmp_path, metrics="newer")
    (tmp_path / "run_summary.json").write_text("{}")
    run = publisher(store, tmp_path)
    run.start(Heard())
    assert run.restore() is None
    assert (tmp_path / "metrics.jsonl").read_text() == "newer"
    assert run.finish(PATIENCE) is None


def test_a_store_that_fails_is_a_warning_and_is_tried_again(
    quick_store: Store, proxy: FaultProxy, tmp_path: Path
) -> None:
    run, heard = publisher(quick_store, tmp_path), Heard()
    run.start(heard)
    heard.wait_for(RecordOpened)
    write(tmp_path, metrics="first")
    proxy.answer(503, times=10**6)
    run.on_event(SAVED)
    warned = heard.wait_for(Warned)
    assert isinstance(warned, Warned)
    assert "the record of this run could not be published, which is tried again" in warned.text
    proxy.heal()
    run.on_event(SAVED)
    until(PATIENCE, "it is published", lambda: quick_store.get(f"{JOB}/runs/0001/metrics.jsonl") == b"first")
    assert run.finish(PATIENCE) is None


def test_training_does_not_wait_for_an_upload(s3_store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    run, heard = publisher(s3_store, tmp_path), Heard()
    run.start(heard)
    heard.wait_for(RecordOpened)
    write(tmp_path, metrics="first")
    held = proxy.hold(path="metrics.jsonl")
    for _ in range(100):
        run.on_event(SAVED)  # returns, though the first upload does not end
    until(PATIENCE, "the upload began", lambda: [path for _, path in proxy.requests if "metrics.jsonl" in path])
    assert s3_store.get(f"{JOB}/runs/0001/metrics.jsonl") is None
    held.release()
    assert run.finish(PATIENCE) is None
    assert s3_store.get(f"{JOB}/runs/0001/metrics.jsonl") == b"first"


def test_the_end_of_a_run_waits_only_so_long(quick_store: Store, proxy: FaultProxy, tmp_path: Path) -> None:
    run, heard = publisher(quick_store, tmp_path), Heard()
    run.start(heard)
    heard.wait_for(RecordOpened)
    proxy.answer(503, times=10**6)
    assert run.finish(0.1) == "the record of this run is not complete: the store did not take it within 0.1 s"


def test_nothing_is_written_into_a_folder_that_is_not_the_jobs(store: Store, tmp_path: Path) -> None:
    store.put(f"{JOB}/train.jsonl", b"someone's work")
    run, heard = publisher(store, tmp_path), Heard()
    run.start(heard)
    assert run.finish(PATIENCE) is None
    assert paths(store) == ["train.jsonl"]
    assert heard.of(Warned) == [], "the run itself says it"


def test_a_record_that_was_deleted_is_not_written_again(store: Store, tmp_path: Path) -> None:
    run, heard = publisher(store, tmp_path), Heard()
    run.start(heard)
    heard.wait_for(RecordOpened)
    assert delete_job(store, JOB, "mine", NOW) == []
    write(tmp_path, metrics="late")
    assert run.finish(PATIENCE) is None
    assert paths(store) == []


class DeletedMeanwhile(RecordFolder):
    """Its job is deleted after a start has asked whose the folder is, and before a file arrives."""

    def put(self, path: str, data: Data) -> None:
        assert delete_job(self.store, JOB, "mine", NOW) == []
        super().put(path, data)


@pytest.mark.parametrize("store_fails", [False, True])
def test_a_start_takes_back_what_it_wrote_after_the_deletion(
    store: Store, tmp_path: Path, store_fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", metrics="late", samples="late")
    own = claimed(store)
    run = RecordPublisher(lambda: DeletedMeanwhile(own.store, own.job, own.name, own.run), tmp_path / "out", None)
    if store_fails:  # one file does not arrive, so the round fails
        put = store.put
        monkeypatch.setattr(store, "put", lambda path, data: fail() if "samples" in path else put(path, data))
    run.start(Heard())
    run.finish(PATIENCE)
    assert paths(store) == []


def fail() -> None:
    raise StorageError("503")


def test_a_deletion_sees_what_a_start_writes_during_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    record = claimed(store)
    record.put("metrics.jsonl", b"...")
    store.put(f"{JOB}/runs/0001/notes.txt", b"someone's work")
    delete, deleted = store.delete, []

    def delete_and_write(chosen: Sequence[str]) -> None:
        delete(chosen)
        deleted.append(chosen)
        if len(deleted) == 1:
            record.put("events.jsonl", b"late")

    monkeypatch.setattr(store, "delete", delete_and_write)
    assert delete_job(store, JOB, "mine", NOW) == ["runs/0001/notes.txt"]
    assert deleted[0] == [f"{JOB}/runs/0001/metrics.jsonl"], "the file came while its record was deleted"
    assert paths(store) == ["runs/0001/notes.txt"]


def test_records_are_deleted_with_the_job_and_nothing_else_is(store: Store) -> None:
    saved = checkpoints(store)
    saved.start("Auto")
    saved.publish(checkpoint(10))
    for uid in ("before", "mine"):
        record = claimed(store, uid=uid)
        for path in ("metrics.jsonl", "logs/driver.log", "tensorboard/events.out.tfevents.1.host"):
            record.put(path, b"...")
    foreign = ["runs/0001/notes.txt", "runs/0002/logs/deep/a.log", "runs/exp1/metrics.jsonl", "runs/0009/metrics.jsonl"]
    for path in foreign:
        store.put(f"{JOB}/{path}", b"someone's work")
    assert delete_job(store, JOB, "mine", NOW) == sorted(foreign)
    assert paths(store) == sorted(foreign)


def test_a_record_of_another_job_stays(store: Store) -> None:
    saved = checkpoints(store)
    saved.start("Auto")
    theirs = claim_folder(CheckpointStore(store, "other", keep=None, identity={}), Owner("other"), None)
    data = theirs.run.to_bytes()
    store.put(f"{JOB}/runs/0001/run.json", data)
    store.put(f"{JOB}/runs/0001/metrics.jsonl", b"copied")
    assert delete_job(store, JOB, "mine", NOW) == ["runs/0001/metrics.jsonl", "runs/0001/run.json"]


def test_the_record_of_a_job_that_never_claimed_its_folder_is_deleted_too(store: Store) -> None:
    """It failed early, such as by a misspelt model."""
    claimed(store).put("events.jsonl", b"{}\n")
    with pytest.raises(FencedError):
        delete_job(store, JOB, "another", NOW)
    assert delete_job(store, JOB, "mine", NOW) == []
    assert paths(store) == []


def test_a_job_starts_beside_its_records_and_not_beside_other_things_there(store: Store) -> None:
    claimed(store).put("metrics.jsonl", b"...")
    assert checkpoints(store).start("Auto").warnings == ()
    store.put(f"{JOB}/runs/0001/weights.pt", b"someone's work")
    (warning,) = checkpoints(store).start("Auto").warnings
    assert "holds objects that lorarl did not write: runs/0001/weights.pt" in warning


def test_long_logs_and_samples_are_cut_and_say_so(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "LOG_BYTES", 100)
    monkeypatch.setattr(contents, "SAMPLES_BYTES", 100)
    log = tmp_path / "driver"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    lines = [json.dumps({"step": step, "evaluation": False}) + "\n" for step in range(100)]
    write(tmp_path / "out", samples="".join(lines), metrics="".join(lines))
    run = publisher(store, tmp_path / "out", log)
    run.start(Heard())
    assert run.finish(PATIENCE) is None

    first, *rest = (store.get(f"{JOB}/runs/0001/logs/driver.log") or b"").decode().splitlines()
    assert first.startswith("[8,") and "bytes before this are left out" in first
    assert rest == [f"line {number}" for number in range(1000 - len(rest), 1000)]
    samples = (store.get(f"{JOB}/runs/0001/samples.jsonl") or b"").decode().splitlines(keepends=True)
    assert samples[1:] == lines[-len(samples) + 1 :]
    assert json.loads(samples[0]) == {"left_out_bytes": sum(map(len, lines[: -len(samples) + 1]))}
    assert store.get(f"{JOB}/runs/0001/metrics.jsonl") == "".join(lines).encode(), "curves are whole"
