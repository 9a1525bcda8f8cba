"""What a worker prints, in the log of its pod.

Ray writes the output of its workers to files, and brings it to the driver. `kubectl logs` of a worker's pod would show
nothing of it, although that is where people look first when a node has a problem.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lorarl_trainer.pods import follow


def show_in_pod_log(name: str, told_first: str, files: Sequence[Path] = ()) -> bool:
    """Copy what this process prints to the log of its container from now on, each line after `[name]`.

    Args:
        name: whose lines they are: a pod may have several workers.
        told_first: the line before them.
        files: what is copied in the place of this process's own output, until it ends. They exist already.

    Returns:
        Whether it can be done. In a pod whose main process is not `ray start --block`, it cannot.
    """
    files = files or _own_output()
    log = _container_log()
    if not files or log is None:
        return False
    command = [sys.executable, "-I", "-S", follow.__file__, name, str(os.getpid()), *map(str, files)]
    try:
        with log.open("wb", buffering=0) as output:
            output.write(f"[{name}] {told_first}\n".encode())
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False  # the driver's log has it all the same
    return True


def _own_output() -> list[Path]:
    """The files that this process prints to."""
    files = [Path(f"/proc/self/fd/{number}").readlink() for number in (1, 2) if _is_file(number)]
    return list(dict.fromkeys(files))


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _container_log() -> Path | None:
    """The standard output of `ray start --block`, which is the container's: it started Ray's agent, and that us."""
    try:
        start = _parent(os.getppid())
        arguments = Path(f"/proc/{start}/cmdline").read_bytes().split(b"\0")
    except (OSError, StopIteration):
        return None
    return Path(f"/proc/{start}/fd/1") if b"--block" in arguments else None


def _parent(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("PPid:")).split()[1])
