"""A command in its own process, which prints into a file and does not outlive this one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lorarl_trainer.launch import bound, guard

GRACE_SECONDS = 10.0
"""For a child to end by SIGTERM, before its guard kills it."""


def start_child(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command. It gets SIGTERM when this process ends, also by a kill.

    It has its own session, so Ctrl-C in the terminal does not reach it by itself. Call this from a thread that
    ends with the process: the kernel takes the end of the thread that calls it for that of the process.

    Args:
        command: what runs.
        log: the file that it prints into; what was there is lost.
        environment: variables beside those of this process.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-I", bound.__file__, str(os.getpid()), *command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def guarded(child: subprocess.Popen[bytes], grace_seconds: float = GRACE_SECONDS) -> subprocess.Popen[bytes]:
    """Let all processes of a child be killed if this process is, and SIGTERM has not ended them in time.

    Returns what starts the guard, which is to be waited for. The guard itself ends with the child's group.
    """
    command = [sys.executable, "-I", guard.__file__, str(os.getpid()), str(child.pid), str(grace_seconds)]
    none = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)
