"""`lorarl drain`, the preStop hook of head and worker pods: announces that the pod is about to end.

Kubernetes runs it before it sends SIGTERM to a pod's containers, and waits for it within the grace period. It asks the
trainer for a checkpoint, and returns when the trainer's processes in this pod have ended, so that Ray stays alive until
then. Ray then has a few seconds to end. Otherwise, waiting for a head that is gone, it would ignore SIGTERM for 40 s,
and the pod would keep its GPUs for as long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

RUN_DIR = "LORARL_RUN_DIR"
"""Environment variable: the folder in which a pod's processes register.

Outside pods it is unset, and there is no hook.
"""
DRIVER = "driver"
_DRAIN_FILE = "drain"
_RAY = "ray"
"""File with the process id of `ray start`, written by the images' own `ray`."""
_RAY_ENDS_SECONDS = 3
_POLL_SECONDS = 0.2


def in_a_pod() -> bool:
    """Whether this process runs in a job's pod."""
    return _run_dir() is not None


def drain_asked() -> bool:
    """Whether this pod is about to be removed."""
    folder = _run_dir()
    return folder is not None and (folder / _DRAIN_FILE).exists()


def register(name: str) -> None:
    """Make `drain` wait until this process has ended.

    The one named `DRIVER` also gets SIGTERM and publishes a checkpoint.
    """
    if (folder := _run_dir()) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.pid").write_text(str(os.getpid()))


def drain() -> None:
    """Ask for a checkpoint, wait until every registered process of this pod has ended, and make Ray end soon after.

    A worker reports the request with its next step to the driver, which is in another pod. Kubernetes limits the wait:
    it ends this process when the grace period is over.
    """
    if (folder := _run_dir()) is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _DRAIN_FILE).touch()
    asked = False
    while running := {path.stem: pid for path in folder.glob("*.pid") if (pid := _running_pid(path)) is not None}:
        if DRIVER in running and not asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running[DRIVER], signal.SIGTERM)
            asked = True
        time.sleep(_POLL_SECONDS)
    if (ray := _running_pid(folder / _RAY)) is not None:
        # Kubernetes sends SIGTERM once this process has ended.
        nothing = subprocess.DEVNULL
        later = ["sh", "-c", f"sleep {_RAY_ENDS_SECONDS}; kill -KILL {ray}"]
        subprocess.Popen(later, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def _run_dir() -> Path | None:
    named = os.environ.get(RUN_DIR)
    return Path(named) if named else None


def _running_pid(path: Path) -> int | None:
    """Return the id of the process that registered there, if it is still running."""
    try:
        pid = int(path.read_text())
        # A zombie has ended; its parent has not asked for its exit code yet.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid
