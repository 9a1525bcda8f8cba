"""What the Makefile passes on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def test_the_python_that_a_user_names_reaches_setup() -> None:
    command = ["make", "-s", "--eval", "show: ; @echo $$PYTHON", "show"]
    environment = {**os.environ, "PYTHON": "/chosen"}
    shown = subprocess.run(
        command, cwd=Path(__file__).parents[3], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert shown == "/chosen\n"
