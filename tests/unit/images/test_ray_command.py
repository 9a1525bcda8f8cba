"""The images' `ray`: whether the head answers, which KubeRay's workers ask before they start, without Ray; everything else with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

RAY = Path(__file__).resolve().parents[3] / "trainer_image/ray"


def ask(*arguments: str) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen([RAY, *arguments], env={**os.environ, "PATH": path}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_head_that_begins_to_answer_while_it_is_asked_is_there() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        asked = ask("health-check", "--address", f"127.0.0.1:{head.getsockname()[1]}")
        head.listen()
        assert asked.wait(timeout=30) == 0


def test_a_head_that_does_not_answer_is_told() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        asked = ask("health-check", "--address", address)
        _, error = asked.communicate(timeout=60)
    assert asked.returncode == 1 and error == f"ray health-check: {address} does not answer\n"


def test_whatever_else_is_asked_ray_answers() -> None:
    told, _ = ask("--version").communicate(timeout=60)
    assert version("ray") in told
    explained, _ = ask("health-check", "--address", "127.0.0.1:1", "--help").communicate(timeout=60)
    assert "health-check [OPTIONS]" in explained
