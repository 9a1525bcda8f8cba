"""Processes that hang say where, and those that cannot are described."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lorarl_trainer.workers.stacks import own_stacks, stacks_of

HANGS = """
import threading
from lorarl_trainer.workers.stacks import write_at_signal

def waits_for_a_peer(lock):
    print("ready", flush=True)
    lock.acquire()

write_at_signal()
lock = threading.Lock()
lock.acquire()
waits_for_a_peer(lock)
"""


@contextmanager
def hanging(scratch: Path | None = None) -> Iterator[int]:
    changes = {"TMPDIR": str(scratch)} if scratch else {}
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, text=True, env={**os.environ, **changes}
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with hanging() as found:
        yield found


def test_a_process_that_hangs_says_where_each_time(pid: int) -> None:
    for _ in range(2):
        (text,) = stacks_of([pid])
        assert text.startswith(f"process {pid}, state: S (sleeping)")
        assert text.count("in waits_for_a_peer") == 1, text


def test_a_stopped_process_and_one_that_has_ended_are_described() -> None:
    with hanging() as stopped, hanging() as ended, hanging() as other:
        os.kill(stopped, signal.SIGSTOP)
        os.kill(ended, signal.SIGKILL)
        os.waitpid(ended, 0)
        first, second, third = stacks_of([stopped, ended, other], seconds=5)
        os.kill(stopped, signal.SIGCONT)
    assert first.startswith(f"process {stopped}, state: T (stopped)")
    assert "writes no stacks: it is stopped" in first
    assert second.startswith(f"process {ended}, which has ended\n")
    assert "in waits_for_a_peer" in third, "it is not kept back by the others"


def test_a_process_leaves_no_file_behind(tmp_path: Path) -> None:
    with hanging(tmp_path) as killed:
        (text,) = stacks_of([killed])
    assert "in waits_for_a_peer" in text
    assert list(tmp_path.iterdir()) == []


def test_this_process_writes_all_its_threads() -> None:
    assert "in test_this_process_writes_all_its_threads" in own_stacks()
