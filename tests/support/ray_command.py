"""The images' `ray`, as their pods call it."""

from __future__ import annotations

import os
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
