"""Programs that tests start end with them, however the tests end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil

from support.cluster.processes import Process, running, until

TESTS = Path(__file__).parents[2]


def is_running(pid: int) -> bool:
    """Whether a process is there; one that has ended may wait for the process that inherited it."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_program_ends_with_a_test_process_that_is_killed(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from support.cluster.processes import running
with running(["sleep", "1000"], Path({str(tmp_path)!r}, "sleep.log")) as process:
    print(process.pid, flush=True)
    process.wait(1000)
"""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until(10, "the program runs", lambda: psutil.Process(pid).name() == "sleep")
        parent.kill()
    until(10, "the program has ended", lambda: not is_running(pid))


def test_a_program_outlives_the_thread_that_asked_for_it(tmp_path: Path) -> None:
    started: list[Process] = []

    def ask() -> None:
        started.append(Process(["sleep", "1000"], tmp_path / "sleep.log", {}))
        until(10, "the program runs", lambda: psutil.Process(started[0].pid).name() == "sleep", started[0])

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    until(10, "the kernel has ended the thread", lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    started[0].stop()
    assert started[0].wait(30) == -signal.SIGTERM, "it was there to be told"


def test_a_program_has_its_own_arguments_environment_and_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "sh.log"
    with running(
        ["sh", "-c", 'echo "$0 $1 $WORD $PYTHONPATH"; exit 3', "a b", "c"], log, {"WORD": "told", "PYTHONPATH": "kept"}
    ) as process:
        assert process.wait(10) == 3
    assert log.read_text() == "a b c told kept\n"
