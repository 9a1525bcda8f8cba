"""SmolLM2-135M-Instruct for the tests, made once a machine by the script of the example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "smollm2"
NOT_FETCHED = 3
"""How the script ends if the package with the model cannot be had."""


def smollm2() -> Path:
    """Return its folder, or skip the test with the reason why it cannot be had."""
    done = subprocess.run([sys.executable, EXAMPLE / "make_base.py"], capture_output=True, text=True, check=False)
    if done.returncode == NOT_FETCHED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1])
