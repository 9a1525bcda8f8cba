"""Where a process stands, also one that hangs: at a signal it writes the stacks of all its threads.

It writes them to a file in memory that only its own user can read, and that ends with it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

SIGNAL = signal.SIGUSR1
_POLL_SECONDS = 0.1
_FILE = "lorarl-stacks"


def write_at_signal() -> None:
    """Let this process answer `stacks_of`. C code does so, which needs neither the interpreter nor the main thread."""
    if os.getpid() in _files:
        return
    file = _files[os.getpid()] = os.fdopen(os.memfd_create(_FILE), "w")
    faulthandler.register(SIGNAL, file, all_threads=True)


def stacks_of(pids: list[int], seconds: float = 5.0) -> list[str]:
    """Return the stacks of processes on this machine, or why there are none."""
    before = {pid: _size(pid) for pid in pids}
    gone = [pid for pid in pids if not _signal(pid)]
    until = time.monotonic() + seconds
    while time.monotonic() < until and any(_size(pid) <= before[pid] for pid in pids if pid not in gone):
        time.sleep(_POLL_SECONDS)
    time.sleep(_POLL_SECONDS)  # a file is written in several parts
    return [f"process {pid}, {_state(pid)}\n{_written(pid, before[pid])}" for pid in pids]


def own_stacks() -> str:
    """Return the stacks of this process' threads."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return f"process {os.getpid()}, {' '.join(sys.argv)}\n{file.read()}"


def _signal(pid: int) -> bool:
    try:
        os.kill(pid, SIGNAL)
    except ProcessLookupError:
        return False
    return True


def _written(pid: int, before: int) -> str:
    try:
        with _file_of(pid).open() as file:
            file.seek(before)
            return file.read() or "It writes no stacks: it is stopped, or waits in the kernel.\n"
    except OSError as error:
        return f"It writes no stacks: {error}\n"


def _size(pid: int) -> int:
    try:
        return _file_of(pid).stat().st_size
    except OSError:
        return 0


def _state(pid: int) -> str:
    """Return what Linux says about a process, such as `state: D (disk sleep), in: futex_wait_queue`."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        state = next(line.partition(":")[2].strip() for line in lines if line.startswith("State:"))
        waits_in = Path(f"/proc/{pid}/wchan").read_text().strip("\0 \n")
    except OSError:
        return "which has ended"
    return f"state: {state}" + (f", in: {waits_in}" if waits_in not in ("", "0") else "")


def _file_of(pid: int) -> Path:
    """Find the file among those that a process has open.

    Raises:
        OSError: there is no such process of this user, or it has no such file.
    """
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed in the meantime
            if path.readlink().name == f"memfd:{_FILE} (deleted)":  # as Linux calls a file in memory
                return path
    raise FileNotFoundError(f"process {pid} has not called write_at_signal")


_files: dict[int, TextIO] = {}
"""The open file of this process, by its id: a child of it has none."""
