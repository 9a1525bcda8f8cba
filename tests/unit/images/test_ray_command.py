"""The images' `ray`: it says itself whether the head answers, which KubeRay's workers ask; Ray does everything else."""

from __future__ import annotations

import socket
from importlib.metadata import version

import pytest

from support.ray_command import ray


def test_a_head_that_begins_to_answer_while_it_is_asked_is_there() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        asked = ray("health-check", "--address", f"127.0.0.1:{head.getsockname()[1]}")
        head.listen()
        assert asked.wait(timeout=30) == 0


@pytest.mark.slow
def test_a_head_that_does_not_answer_is_told() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{head.getsockname()[1]}"
        asked = ray("health-check", "--address", address)
        _, error = asked.communicate(timeout=60)
    assert asked.returncode == 1 and error == f"ray health-check: {address} does not answer\n"


@pytest.mark.slow
def test_whatever_else_is_asked_ray_answers() -> None:
    shown, _ = ray("--version").communicate(timeout=60)
    assert shown == f"ray, version {version('ray')}\n"
    explained, _ = ray("health-check", "--address", "127.0.0.1:1", "--help").communicate(timeout=60)
    assert "health-check [OPTIONS]" in explained
