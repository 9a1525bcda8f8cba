"""A child ends with the process that started it, also one that ignores SIGTERM, with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lorarl_trainer.launch import guard
from support.cluster.processes import until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from lorarl_trainer.launch.child_process import guarded, start_child
child = start_child([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), {})
guarded(child, 0.3).wait()
print(child.pid, flush=True)
child.wait()
time.sleep(600)
"""


Family = tuple[subprocess.Popen[str], int, int]


@pytest.fixture
def family(tmp_path: Path) -> Family:
    """A parent, its child, and what the child has started."""
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, STUBBORN, str(log)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until(20.0, "the child has started its own", lambda: log.exists() and log.read_text().endswith("\n"))
    return parent, child, int(log.read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stubborn_child_ends_with_a_parent_that_is_killed(family: Family, number: signal.Signals) -> None:
    parent, child, grandchild = family
    (guarding,) = guards_of(child)
    os.kill(parent.pid, number)
    parent.wait()
    until(20.0, "all have ended", lambda: not any(map(is_alive, (child, grandchild, guarding))))


def test_what_a_child_has_started_ends_also_if_all_children_are_killed(family: Family) -> None:
    """Ray does that to the children of an actor that ends, but not to theirs."""
    parent, _, grandchild = family
    for each in psutil.Process(parent.pid).children():
        each.kill()
    parent.kill()
    parent.wait()
    until(20.0, "it has ended", lambda: not is_alive(grandchild))


def test_a_guard_ends_with_the_group_that_it_guards(family: Family) -> None:
    parent, child, _ = family
    (guarding,) = guards_of(child)
    os.killpg(child, signal.SIGKILL)
    until(20.0, "it has ended", lambda: not is_alive(guarding))
    parent.kill()
    parent.wait()


def guards_of(group: int) -> list[int]:
    """The guards of a group of processes."""
    lines = {each.pid: each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])}
    return [pid for pid, line in lines.items() if guard.__file__ in line and str(group) in line]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
