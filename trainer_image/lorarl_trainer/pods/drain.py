"""A pod's end, announced: `lorarl drain` is the preStop hook of head and worker pods.

Kubernetes runs it before it sends SIGTERM to a pod's containers, and waits for it within the grace period. It asks the trainer for a
checkpoint, and returns when the trainer's processes in this pod have ended, so that Ray is not taken from under them. Ray then has a few
seconds to end: it hears no SIGTERM for 40 s where it waits for a head that has gone, and the pod would hold its GPUs for so long.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

RUN_DIR = "LORARL_RUN_DIR"
"""Environment variable: the folder by which the processes of a pod know of each other. Outside pods there is none, and no hook."""
DRIVER = "driver"
_ASKED = "drain"
_RAY = "ray"
"""Has the process id of `ray start`, which the images' own `ray` leaves there."""
_RAY_ENDS_SECONDS = 3
_LOOK_SECONDS = 0.2


def in_a_pod() -> bool:
    """Whether this process runs in a job's pod."""
    return _run_dir() is not None


def drain_asked() -> bool:
    """Whether this pod is about to be taken away."""
    folder = _run_dir()
    return folder is not None and (folder / _ASKED).exists()


def register(name: str) -> None:
    """Let `drain` wait until this process has ended. The one named `DRIVER` gets SIGTERM besides, and answers with a checkpoint."""
    if (folder := _run_dir()) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.pid").write_text(str(os.getpid()))


def drain() -> None:
    """Ask for a checkpoint, wait until every registered process of this pod has ended, and see to it that Ray ends soon after.

    A worker tells the driver, which is in another pod, with its next step. How long to wait is Kubernetes' matter: it ends this
    process with the grace period.
    """
    if (folder := _run_dir()) is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ASKED).touch()
    asked = False
    while running := {path.stem: pid for path in folder.glob("*.pid") if (pid := _living(path)) is not None}:
        if DRIVER in running and not asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running[DRIVER], signal.SIGTERM)
            asked = True
        time.sleep(_LOOK_SECONDS)
    if (ray := _living(folder / _RAY)) is not None:
        # SIGTERM comes from Kubernetes, once this process has ended.
        nothing = subprocess.DEVNULL
        later = ["sh", "-c", f"sleep {_RAY_ENDS_SECONDS}; kill -KILL {ray}"]
        subprocess.Popen(later, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)


def _run_dir() -> Path | None:
    named = os.environ.get(RUN_DIR)
    return Path(named) if named else None


def _living(path: Path) -> int | None:
    """The process that registered there, if it lives."""
    try:
        pid = int(path.read_text())
        # A zombie has ended, though nobody has asked for its exit code.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid
