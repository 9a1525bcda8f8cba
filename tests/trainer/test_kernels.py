"""The Triton kernels in Triton's own interpreter, which needs no GPU: those of `tests/gpu` in float32."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GPU = Path(__file__).parents[1] / "gpu"
INTERPRETED = "not attention and (not test_sampler or ranks)"
"""Attention is by flash attention's own kernels, and drawing thousands of tokens takes too long."""


def test_kernels_compute_what_their_plain_twins_do() -> None:
    """A separate process: Triton decides on its import whether it interprets."""
    files = [str(GPU / "test_kernels.py"), str(GPU / "test_sampler.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", INTERPRETED, *files]
    variables = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|skipped)", ran.stdout)}
    assert counts.get("passed", 0) >= 20 and "skipped" not in counts, ran.stdout
