"""The images' `ray`: it answers whether the head is there, and starts and submits what a busy machine can."""

from __future__ import annotations

import http.server
import signal
import socket
import threading
from importlib.metadata import version
from tempfile import TemporaryDirectory

import psutil
import pytest

from support.cluster.processes import free_ports, until
from support.ray_command import handles_sigterm, ray


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


@pytest.mark.slow
def test_ray_comes_without_ray_serve() -> None:
    asked = ray("--version", PYTHONPROFILEIMPORTTIME="1")
    _, imported = asked.communicate(timeout=60)
    assert asked.returncode == 0 and "ray.scripts.scripts" in imported and "ray.serve._private" not in imported


@pytest.mark.slow
def test_a_job_is_submitted_when_the_agent_of_the_pod_answers() -> None:
    """Ray waits 10 s for it, which a busy machine exceeds. KubeRay asked only whether the dashboard answers."""
    asked: list[str] = []

    class Dashboard(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append("dashboard")
            self.send_error(500)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    def agent_answers() -> None:
        agent.listen()
        agent.accept()[0].close()
        asked.append("agent")

    with socket.socket() as agent, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as dashboard:
        agent.bind(("127.0.0.1", 0))
        agent.settimeout(60)
        threading.Thread(target=dashboard.serve_forever).start()
        address = f"http://127.0.0.1:{dashboard.server_port}"
        port = str(agent.getsockname()[1])
        submitted = ray("job", "submit", "--address", address, "--", "true", LORARL_AGENT_PORT=port)
        threading.Thread(target=agent_answers).start()
        output, _ = submitted.communicate(timeout=60)
        dashboard.shutdown()
    assert submitted.returncode == 1
    assert asked[:2] == ["agent", "dashboard"], output


@pytest.mark.slow
def test_a_submission_does_not_wait_for_the_agent_of_a_head_that_has_gone() -> None:
    """It would be the last to end in the head's pod, and nothing but a kill would end it."""
    dashboard, agent = free_ports(2)
    address = f"http://127.0.0.1:{dashboard}"
    submitted = ray("job", "submit", "--address", address, "--", "true", LORARL_AGENT_PORT=str(agent))
    _, error = submitted.communicate(timeout=60)
    assert submitted.returncode == 1 and f"Failed to connect to Ray at address: {address}" in error


def test_a_start_ends_at_sigterm_while_it_still_imports_ray() -> None:
    """In a pod it is the first process, which ignores a signal without a handler: its pod would stay until a kill."""
    head = ray("start", "--head", "--num-cpus=0", "--include-dashboard=false", "--block")
    until(60, "it handles SIGTERM", lambda: handles_sigterm(head.pid))
    head.terminate()
    output, _ = head.communicate(timeout=60)
    assert (head.returncode, output) == (128 + signal.SIGTERM, ""), "Ray's own handler ends otherwise"


def commands_of(parent: int) -> list[str]:
    return [" ".join(one.cmdline()) for one in psutil.Process(parent).children(recursive=True)]


@pytest.mark.slow
def test_a_head_has_no_server_for_clients() -> None:
    """On a busy machine that server did not start within 30 s, and ended the head with all else."""
    (port,) = free_ports(1)
    started: list[psutil.Process] = []
    with TemporaryDirectory(dir="/tmp") as folder:  # the names of Ray's sockets are long
        places = (f"--port={port}", "--node-ip-address=127.0.0.1", f"--temp-dir={folder}")
        head = ray("start", "--head", *places, "--num-cpus=0", "--include-dashboard=false", "--block")
        try:
            until(
                60,
                "its raylet, which starts last",
                lambda: any("raylet/raylet" in one for one in commands_of(head.pid)),
            )
            started = psutil.Process(head.pid).children(recursive=True)
            commands = commands_of(head.pid)
        finally:
            for one in [psutil.Process(head.pid), *started]:
                one.kill()
            head.communicate(timeout=60)
    assert any("gcs_server" in one for one in commands)
    assert not [one for one in commands if "ray.util.client" in one]
