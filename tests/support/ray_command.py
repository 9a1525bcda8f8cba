"""The images' `ray`, as their pods call it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

RAY = Path(__file__).resolve().parents[2] / "trainer_image/ray"


def ray(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start it, with the Ray of these tests."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **variables}
    return subprocess.Popen(
        [RAY, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def handles_sigterm(process: int) -> bool:
    """Whether a process has its own handler for SIGTERM."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
