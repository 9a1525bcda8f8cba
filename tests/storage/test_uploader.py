"""Publication in the background, and what becomes of a checkpoint that cannot be published."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lorarl_trainer.checkpoint import BackgroundUploader, Checkpoint, CheckpointStore, Published
from lorarl_trainer.errors import FencedError, StorageError
from lorarl_trainer.storage import LocalStore, RetryPolicy, Store, open_store
from support.checkpoints import checkpoint, checkpoints, require_whole
from support.fault_proxy import FOREVER, FaultProxy
from support.s3_server import S3Server

PATIENT = RetryPolicy(deadline_seconds=20, first_wait_seconds=0.01, longest_wait_seconds=0.05, request_seconds=20)
Start = Callable[..., tuple[BackgroundUploader, CheckpointStore]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def make(store: Store, published: list[Published] | None = None) -> tuple[BackgroundUploader, CheckpointStore]:
        run = checkpoints(store)
        run.start("Auto", [tmp_path / "unpublished"])
        return BackgroundUploader(
            run, tmp_path / "unpublished", published.append if published is not None else None
        ), run

    return make


def failure_of(uploader: BackgroundUploader) -> Exception:
    """Poll as the loop does, until it fails."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            uploader.raise_if_failed()
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            return error
        time.sleep(0.01)
    raise AssertionError("it did not fail within 60 s")


def test_checkpoints_are_published_while_the_caller_goes_on(store: Store, start: Start) -> None:
    published: list[Published] = []
    uploader, _ = start(store, published)
    uploader.submit(checkpoint(10))
    uploader.drain(60)
    uploader.submit(checkpoint(20))
    uploader.drain(60)
    uploader.raise_if_failed()
    assert [one.step for one in published] == [10, 20]
    assert require_whole(store) == 20


def test_the_thread_ends_when_it_is_closed_and_all_is_published(store: Store, start: Start) -> None:
    before = set(threading.enumerate())
    uploader, _ = start(store)
    [thread] = set(threading.enumerate()) - before
    uploader.submit(checkpoint(10))
    uploader.close()
    thread.join(60)
    assert not thread.is_alive() and require_whole(store) == 10


def test_a_newer_checkpoint_takes_the_place_of_the_one_that_waits(
    s3: S3Server, proxy: FaultProxy, bucket: str, start: Start
) -> None:
    store = open_store(f"s3://{bucket}", s3.secret(proxy.url), retries=PATIENT)
    published: list[Published] = []
    uploader, _ = start(store, published)
    hold = proxy.hold(method="PUT", path="iter_0000010")
    uploader.submit(checkpoint(10))
    assert hold.arrived.wait(30)
    begin = time.monotonic()
    uploader.submit(checkpoint(20))
    uploader.submit(checkpoint(30))
    assert time.monotonic() - begin < 5, "submitting does not wait for the upload"
    hold.release()
    uploader.drain(60)
    assert [one.step for one in published] == [10, 30]


def test_an_unpublished_checkpoint_is_kept_and_a_later_start_resumes(
    quick_store: Store, proxy: FaultProxy, start: Start, tmp_path: Path
) -> None:
    """A checkpoint that cannot be published stays on this machine."""
    uploader, _ = start(quick_store)
    uploader.submit(checkpoint(10))
    uploader.drain(60)
    proxy.answer(503, times=FOREVER, method="PUT")
    uploader.submit(checkpoint(20))
    error = failure_of(uploader)
    assert isinstance(error, StorageError)
    kept = tmp_path / "unpublished/iter_0000020"
    for part in ("step 20 could not be published", "503 Injected", str(kept), "start the same job"):
        assert part in str(error)
    for call in (lambda: uploader.submit(checkpoint(30)), lambda: uploader.drain(1)):
        with pytest.raises(StorageError, match="step 20"):
            call()

    proxy.heal()
    assert require_whole(quick_store) == 10
    run = checkpoints(quick_store)
    started = run.start("Auto", [tmp_path / "unpublished"])
    assert started.found is not None
    assert started.found.checkpoint == checkpoint(20)
    assert started.found.uri == f"file://{kept}"
    run.publish(checkpoint(30))
    assert require_whole(quick_store) == 30
    assert checkpoints(quick_store).start("Auto", [tmp_path / "unpublished"]).found.manifest.step == 30  # type: ignore[union-attr]


def test_of_two_that_cannot_be_published_the_newer_is_kept(
    s3: S3Server, proxy: FaultProxy, bucket: str, start: Start, tmp_path: Path
) -> None:
    impatient = RetryPolicy(deadline_seconds=0.5, first_wait_seconds=0.01, longest_wait_seconds=0.05, request_seconds=5)
    uploader, _ = start(open_store(f"s3://{bucket}", s3.secret(proxy.url), retries=impatient))
    hold = proxy.hold(method="PUT", path="iter_0000010")
    uploader.submit(checkpoint(10))
    assert hold.arrived.wait(30)
    uploader.submit(checkpoint(20))
    proxy.answer(503, times=FOREVER, method="PUT")
    hold.release()
    assert "step 20" in str(failure_of(uploader))
    assert [folder.name for folder in (tmp_path / "unpublished").iterdir() if folder.is_dir()] == ["iter_0000020"]


def test_an_unpublished_checkpoint_is_not_resumed_after_a_later_run(
    quick_store: Store, proxy: FaultProxy, start: Start, tmp_path: Path
) -> None:
    """Not once a later run has published."""
    uploader, _ = start(quick_store)
    proxy.answer(503, times=FOREVER, method="PUT")
    uploader.submit(checkpoint(100))
    failure_of(uploader)
    proxy.heal()
    elsewhere = checkpoints(quick_store)
    elsewhere.start("Auto")
    elsewhere.publish(checkpoint(10))
    started = checkpoints(quick_store).start("Auto", [tmp_path / "unpublished"])
    assert started.found is not None
    assert started.found.manifest.step == 10
    assert "epoch 1, and epoch 2 has published since" in started.warnings[0]


@pytest.mark.parametrize(
    ("identity", "published", "goes_on_from"),
    [({}, False, 100), ({}, True, 10), ({"trainer.seed": 1}, False, None)],
    ids=["an empty store", "a training that began anew there", "another training"],
)
def test_an_unpublished_checkpoint_that_was_kept_for_another_store(
    identity: dict[str, object],
    published: bool,
    goes_on_from: int | None,
    quick_store: Store,
    proxy: FaultProxy,
    start: Start,
    tmp_path: Path,
) -> None:
    uploader, _ = start(quick_store)
    proxy.answer(503, times=FOREVER, method="PUT")
    uploader.submit(checkpoint(100))
    failure_of(uploader)
    other = LocalStore(tmp_path / "another-store")
    if published:
        anew = checkpoints(other)
        anew.start("Never")
        anew.publish(checkpoint(10))
    started = checkpoints(other, **identity).start("Auto", [tmp_path / "unpublished"])
    assert (started.found and started.found.manifest.step) == goes_on_from
    assert [warning for warning in started.warnings if "it was kept for s3://" in warning] or goes_on_from == 100


def test_an_unpublished_checkpoint_of_another_job_is_passed_over(tmp_path: Path, start: Start) -> None:
    store = LocalStore(tmp_path / "store")
    other = CheckpointStore(LocalStore(tmp_path / "unpublished"), "other", keep=1, identity={})
    other.start("Auto")
    other.publish(checkpoint(10))
    (tmp_path / "unpublished/other/iter_0000010").rename(tmp_path / "unpublished/iter_0000010")
    started = checkpoints(store).start("Auto", [tmp_path / "unpublished"])
    assert started.found is None
    assert "it belongs to the job other" in started.warnings[0]


def test_a_fenced_run_says_so_at_its_next_step_and_keeps_nothing(store: Store, start: Start, tmp_path: Path) -> None:
    uploader, _ = start(store)
    checkpoints(store).start("Auto")
    uploader.submit(checkpoint(10))
    assert isinstance(failure_of(uploader), FencedError)
    assert not (tmp_path / "unpublished").exists()


def test_an_upload_that_does_not_end_in_time_is_kept_here(
    s3: S3Server, proxy: FaultProxy, bucket: str, start: Start, tmp_path: Path
) -> None:
    uploader, _ = start(open_store(f"s3://{bucket}", s3.secret(proxy.url), retries=PATIENT))
    hold = proxy.hold(method="PUT", path="iter_0000010")
    uploader.submit(checkpoint(10))
    assert hold.arrived.wait(30)
    with pytest.raises(
        StorageError, match=r"step 10 could not be published: the upload did not end within 0\.2 s.*iter_0000010"
    ):
        uploader.drain(0.2)
    assert (tmp_path / "unpublished/iter_0000010/checkpoint.json").exists()
    hold.release()


def test_a_checkpoint_that_can_be_kept_nowhere_is_said_to_be_lost(
    s3_store: Store, proxy: FaultProxy, start: Start, tmp_path: Path
) -> None:
    uploader, _ = start(s3_store)
    (tmp_path / "unpublished").write_text("a file in the way")
    proxy.answer(403, times=FOREVER, method="PUT")
    uploader.submit(checkpoint(10))
    error = str(failure_of(uploader))
    assert "is lost" in error
    assert "403" in error
    assert "is not a folder" in error


def test_a_programming_error_in_the_thread_reaches_the_loop(store: Store, start: Start) -> None:
    uploader, _ = start(store)
    uploader.submit(Checkpoint(10, 10, {"lora_adapter/a": "no bytes"}))  # type: ignore[dict-item]
    assert isinstance(failure_of(uploader), TypeError)
