"""A pod's end, announced: `lorarl drain` is the preStop hook of head and worker pods.

Kubernetes runs it before it sends SIGTERM to a pod's containers, and waits for it within the grace period. It asks the trainer for a
checkpoint, and returns when the trainer's processes in this pod have ended, so that Ray is not taken from under them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

RUN_DIR = "LORARL_RUN_DIR"
"""Environment variable: the folder by which the processes of a pod know of each other."""
_DEFAULT = "/tmp/lorarl-run"
_ASKED = "drain"
_DRIVER = "driver"
_LOOK_SECONDS = 0.2


def run_dir() -> Path:
    """The folder by which the processes of this pod know of each other."""
    return Path(os.environ.get(RUN_DIR, _DEFAULT))


def drain_asked() -> bool:
    """Whether this pod is about to be taken away."""
    return (run_dir() / _ASKED).exists()


@contextlib.contextmanager
def registered(name: str) -> Iterator[None]:
    """Let `drain` wait for this process while the block runs; the driver gets SIGTERM besides."""
    path = register(name)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def register(name: str) -> Path:
    """Let `drain` wait until this process has ended."""
    run_dir().mkdir(parents=True, exist_ok=True)
    path = run_dir() / f"{name}.pid"
    path.write_text(str(os.getpid()))
    return path


def register_driver() -> contextlib.AbstractContextManager[None]:
    """Register the driver, which answers SIGTERM with a checkpoint."""
    return registered(_DRIVER)


def drain() -> None:
    """Ask for a checkpoint, and wait until every registered process of this pod has ended.

    A worker tells the driver, which is in another pod, with its next step. How long to wait is Kubernetes' matter: it ends this
    process with the grace period.
    """
    folder = run_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _ASKED).touch()
    asked = False
    while running := {path.stem: pid for path in folder.glob("*.pid") if (pid := _living(path)) is not None}:
        if _DRIVER in running and not asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(running[_DRIVER], signal.SIGTERM)
            asked = True
        time.sleep(_LOOK_SECONDS)


def _living(path: Path) -> int | None:
    """The process that registered there, if it lives."""
    try:
        pid = int(path.read_text())
        # A zombie has ended, though nobody has asked for its exit code.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, ValueError):
        return None
    return None if state == "Z" else pid
