"""A folder on a disk that is full, read-only or not ours, and writers that are killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from lorarl_trainer.checkpoint import Checkpoint
from lorarl_trainer.errors import StorageError
from lorarl_trainer.storage import LocalStore, local, open_store
from lorarl_trainer.threads import in_parallel
from support.checkpoints import JOB, checkpoint, checkpoints, require_whole

TESTS = Path(__file__).parents[1]
DISK_BYTES = 4 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(tmp_path)], capture_output=True, text=True
    )
    if mount.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def large(step: int, size: int) -> Checkpoint:
    files = {**checkpoint(step).files, "trainer_state/state.safetensors": bytes([step]) * size}
    return Checkpoint(step, step, files)


def files_under(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_full_disk_is_named_and_nothing_is_lost(small_disk: Path) -> None:
    """Files are written side by side, so any of the checkpoint's may be the first that finds the disk full."""
    store = open_store(f"file://{small_disk}/out")
    run = checkpoints(store)
    run.start("Auto")
    run.publish(large(10, 2_000_000))
    folder = re.escape(f"uri: file://{small_disk}/out/{JOB}/iter_0000020/")
    with pytest.raises(StorageError, match=rf"{folder}\S+: cannot write: the disk is full: \d+ bytes needed, \d+ free"):
        run.publish(large(20, 3_000_000))
    assert not [
        file for file in files_under(small_disk) if file.endswith((".partial", "20/trainer_state/state.safetensors"))
    ]
    assert require_whole(store) == 10
    (small_disk / "out" / JOB / "iter_0000010/trainer_state/state.safetensors").stat()
    run.publish(large(20, 1_000_000))
    assert require_whole(store) == 20, "the same run goes on once there is room"


def test_what_a_full_disk_needs_and_has_is_named(small_disk: Path) -> None:
    store = open_store(f"file://{small_disk}/out")
    with pytest.raises(StorageError) as failed:
        store.put("large", b"x" * 2 * DISK_BYTES)
    message = str(failed.value)
    assert message.startswith(f"uri: file://{small_disk}/out/large: cannot write: the disk is full")
    needed, free = re.findall(r"(\d+) (?:bytes needed|free)", message)
    assert int(needed) == 2 * DISK_BYTES
    assert DISK_BYTES // 2 < int(free) <= DISK_BYTES, "measured after the half-written file was removed"


def test_a_disk_that_is_full_from_the_start_is_named(small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * (DISK_BYTES - 8192))
    with pytest.raises(StorageError, match="the disk is full"):
        open_store(f"file://{small_disk}/out").put("a", b"x" * 20_000)
    assert files_under(small_disk) == ["filler", "out/.lorarl.lock"] or files_under(small_disk) == ["filler"]


def test_a_read_only_disk_is_named(small_disk: Path) -> None:
    store = open_store(f"file://{small_disk}/out")
    store.put("a", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match=r"/out/b: cannot write: the file system is read-only\. Mount it writable"):
        store.put("b", b"x")
    with pytest.raises(StorageError, match=r"/out/job: cannot write: the file system is read-only"):
        store.require_writable("job")
    assert store.get("a") == b"x"


def test_a_folder_of_another_user_is_named(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(65534)
    try:
        with pytest.raises(
            StorageError,
            match=r"/out/a: cannot write: permission denied for user 65534 at .* Give that user permission",
        ):
            open_store(f"file://{tmp_path}/out").put("a", b"x")
        with pytest.raises(StorageError, match=r"/out/job: cannot write: permission denied for user 65534 at "):
            open_store(f"file://{tmp_path}/out").require_writable("job")
    finally:
        os.seteuid(0)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match=rf"{tmp_path}/out is not a folder"):
        open_store(f"file://{tmp_path}/out").put("a", b"x")
    with pytest.raises(StorageError, match=rf"{tmp_path}/out is not a folder"):
        open_store(f"file://{tmp_path}/out").require_writable("job")
    assert open_store(f"file://{tmp_path}/out").get("a") is None


def test_asking_whether_a_folder_can_be_written_writes_nothing(tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/a/b").require_writable("job")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_somebody_holds_is_named(tmp_path: Path) -> None:
    store = LocalStore(tmp_path, lock_seconds=0.1)
    with (
        LocalStore(tmp_path)._locked(),
        pytest.raises(StorageError, match=r"held the lock .*\.lorarl\.lock for 0\.1 s"),
    ):
        store.put("a", b"x")
    store.put("a", b"x")


def test_what_killed_writers_left_is_swept_and_live_files_are_not(tmp_path: Path) -> None:
    """Only files that no writer still writes are removed."""
    store = LocalStore(tmp_path)
    (tmp_path / ".a.0123abcd.partial").write_bytes(b"of a killed writer")
    alive = tmp_path / ".a.4567abcd.partial"
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        store.put("a", b"x")
        assert files_under(tmp_path) == [".a.4567abcd.partial", ".lorarl.lock", "a"]
        assert [entry.path for entry in store.entries()] == ["a"]


def test_files_are_written_side_by_side_on_nfs4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFSv4 makes flock of byte-range locks. A test can mount none, so the call is replaced."""
    flock = fcntl.flock

    def as_nfs4(file: IO[bytes], operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs4)
    (tmp_path / ".0.0123abcd.partial").write_bytes(b"of a killed writer")
    store = LocalStore(tmp_path)
    in_parallel(lambda name: store.put(name, b"x"), [str(number) for number in range(8)], 4)
    assert files_under(tmp_path) == [".lorarl.lock", *map(str, range(8))]


def test_a_leftover_that_cannot_be_opened_stays_and_the_file_is_written(tmp_path: Path) -> None:
    """As that of another user. Root may open all, so here it is a folder."""
    (tmp_path / ".a.0123abcd.partial").mkdir()
    LocalStore(tmp_path).put("a", b"x")
    assert files_under(tmp_path) == [".lorarl.lock", "a"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}


def _start_writer(folder: Path, word: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "support.checkpoint_writer", f"file://{folder}", word]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())


@pytest.mark.long
def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """It is the new one or the one before."""
    store = LocalStore(tmp_path)
    chance = random.Random(0)
    reached = 0
    for attempt in range(20):
        with _start_writer(tmp_path, f"writer {attempt}") as writer:
            assert writer.stdout is not None
            told = int(writer.stdout.readline())
            time.sleep(chance.uniform(0, 0.03))
            writer.send_signal(signal.SIGKILL)
            told = max([told, *map(int, writer.stdout.read().split())])
        step = require_whole(store)
        assert step is not None
        assert step in (told, told + 10), "what was said to be published is, and at most one more"
        assert step > reached, "each went on from the one before"
        reached = step
    started = checkpoints(store).start("Auto")
    assert started.warnings == ()
    assert started.found is not None
    assert started.found.manifest.step == reached
    assert started.epoch == 21


def test_processes_in_one_folder_never_show_a_broken_checkpoint(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    writers = [_start_writer(tmp_path, f"writer {number}") for number in range(3)]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        seen: set[int | None] = set()
        deadline = time.monotonic() + 120
        while len(seen) < 10 and time.monotonic() < deadline:
            seen.add(require_whole(store))
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    assert len(seen) == 10, "they went on while we looked"
    assert require_whole(store) is not None


def test_threads_in_one_folder_do_not_sweep_each_other_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged, staged_once = [], local._staged

    def counted(target: Path, data: bytes) -> contextlib.AbstractContextManager[Path]:
        staged.append(target)
        return staged_once(target, data)

    monkeypatch.setattr(local, "_staged", counted)
    paths = [f"folder/{number}" for number in range(1000)]
    assert all(in_parallel(lambda path: LocalStore(tmp_path).put_if_absent(path, b"x"), paths, 4))
    assert len(staged) == len(paths), "a file that was swept away is written once more"
