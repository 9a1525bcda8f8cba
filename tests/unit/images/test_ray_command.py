"""The images' `ray`: it says whether the head answers, and submits no job before the agent; Ray does the rest."""

from __future__ import annotations

import http.server
import socket
import threading
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
