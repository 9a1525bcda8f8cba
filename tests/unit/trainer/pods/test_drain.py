"""`lorarl drain` on real processes, which end or keep running while their pod is taken away."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lorarl_trainer.pods.drain import DRIVER, RUN_DIR, drain_asked, register
from support.ray_command import ray

RAY_WAITS_SECONDS = 40.0
"""How long `ray start` waits for a head that does not answer, regardless of signals."""

WORKER = "from lorarl_trainer.pods.drain import register; register('worker-0'); print('up', flush=True); input()"
DRIVER_PROGRAM = """
import signal, sys
from lorarl_trainer.pods.drain import DRIVER, register
signal.signal(signal.SIGTERM, lambda *_: (print('checkpoint', flush=True), sys.exit(75)))
register(DRIVER)
print('up', flush=True)
signal.pause()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a Python process in a pod of this test."""
    monkeypatch.setenv(RUN_DIR, str(tmp_path))
    return lambda *arguments: subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_the_driver_is_terminated_and_waited_for(start: Callable[..., subprocess.Popen[str]]) -> None:
    driver = start("-c", DRIVER_PROGRAM)
    assert driver.stdout and driver.stdout.readline() == "up\n"
    drain = start("-m", "lorarl_trainer.cli", "drain")
    assert driver.stdout.readline() == "checkpoint\n"
    assert driver.wait(30) == 75
    assert drain.wait(30) == 0


def test_a_worker_is_asked_and_waited_for_but_never_signalled(start: Callable[..., subprocess.Popen[str]]) -> None:
    worker = start("-c", WORKER)
    assert worker.stdout and worker.stdin and worker.stdout.readline() == "up\n"
    assert not drain_asked()
    drain = start("-m", "lorarl_trainer.cli", "drain")
    while not drain_asked():
        assert drain.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        drain.wait(1)
    assert worker.poll() is None
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert drain.wait(30) == 0


def test_a_pod_whose_trainer_has_ended_is_released_at_once(start: Callable[..., subprocess.Popen[str]]) -> None:
    for program in (WORKER, DRIVER_PROGRAM):
        process = start("-c", program)
        assert process.stdout and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert start("-m", "lorarl_trainer.cli", "drain").wait(30) == 0


@pytest.mark.slow
def test_ray_waiting_for_a_lost_head_does_not_delay_the_drain(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = ray("start", "--address", address, "--block", PYTHONUNBUFFERED="1")
        assert started.stdout is not None
        assert any("Local node IP" in line for line in started.stdout), "Ray is loaded, and looks for its head next"
        began = time.monotonic()
        assert int((tmp_path / "ray").read_text()) == started.pid
        assert start("-m", "lorarl_trainer.cli", "drain").wait(30) == 0
        started.terminate()
        assert started.wait(RAY_WAITS_SECONDS) == -signal.SIGKILL
        assert time.monotonic() - began < RAY_WAITS_SECONDS


def test_outside_pods_there_is_nothing_to_register_or_drain(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drain").touch()
    monkeypatch.delenv(RUN_DIR)
    monkeypatch.chdir(tmp_path)
    register(DRIVER)
    assert not drain_asked()
    assert start("-m", "lorarl_trainer.cli", "drain").wait(30) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["drain"]
