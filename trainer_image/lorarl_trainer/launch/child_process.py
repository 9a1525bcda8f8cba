"""A command in its own process, which prints into a file and does not outlive this one."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from lorarl_trainer.rewards.code.confinement import signal_at_parents_end


def start_child(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command. It gets SIGTERM when this process ends, also by a kill.

    It has its own session, so Ctrl-C in the terminal does not reach it by itself. Call this from the main thread.

    Args:
        command: what runs.
        log: the file that it prints into; what was there is lost.
        environment: variables beside those of this process.
    """
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # There is no other thread yet: torch, which has some, is imported later.
            preexec_fn=partial(signal_at_parents_end, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
        )
