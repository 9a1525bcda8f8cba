"""Real servers of OpenEnv, each in a process of a Python that has openenv: it cannot be installed beside vLLM."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.cluster.processes import free_ports

REQUIREMENT = "openenv==0.10.0"
VARIABLE = "LORARL_OPENENV_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
PROGRAM = Path(__file__).resolve().parents[1] / "unit/trainer/rewards/environment/open_env_server.py"

needs_openenv = pytest.mark.skipif(
    not PYTHON, reason=f"needs {VARIABLE}, a Python of an environment with {REQUIREMENT}"
)


@contextmanager
def open_env(kind: str, *, sessions: int = 4, port: int | None = None) -> Iterator[str]:
    """Serve an environment of `open_env_server.py` within the block; yield its URL."""
    port = port or free_ports(1)[0]
    command = [PYTHON, str(PROGRAM), str(port), kind, str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "up\n"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
