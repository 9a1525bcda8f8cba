"""A child ends with the process that started it, also one that ignores SIGTERM, with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.cluster.processes import until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from lorarl_trainer.launch.child_process import guarded, start_child
child = start_child([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), {})
print(child.pid, guarded(child, 0.3).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stubborn_child_ends_with_a_parent_that_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, STUBBORN, str(log)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child, guard = map(int, parent.stdout.readline().split())
    until(20.0, "the child has started its own", lambda: log.exists() and log.read_text().endswith("\n"))
    grandchild = int(log.read_text())
    os.kill(parent.pid, number)
    parent.wait()
    until(20.0, "all have ended", lambda: not any(map(is_alive, (child, grandchild, guard))))


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
