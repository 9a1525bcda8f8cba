"""The check of `helm test`, against real HTTP servers."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.cluster.processes import free_ports
from support.helm import CHART


def load() -> Any:
    spec = importlib.util.spec_from_file_location("check_leader", CHART / "files/check_leader.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check = load()


@contextmanager
def replica(address: str, port: int, text: str) -> Iterator[None]:
    """A server with metrics."""

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((address, port), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def metrics(leader: float) -> str:
    help_line = "# HELP lorarl_operator_leader 1 if this replica holds the lease."
    return f"{help_line}\nlorarl_operator_leader {leader}\nlorarl_jobs 3.0\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of two replicas, which have two addresses. The name server is not part of the test."""
    monkeypatch.setattr(check, "replicas", lambda service, port: ["127.0.0.1", "127.0.0.2"])
    return free_ports(1)[0]


def test_one_leader_and_one_standby_pass(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    with replica("127.0.0.1", port, metrics(0.0)), replica("127.0.0.2", port, metrics(1.0)):
        assert check.main("lorarl-metrics", port) == 0
    assert "2 replicas answer, 1 of them lead (expected 1): 127.0.0.2" in capsys.readouterr().out


@pytest.mark.parametrize("leaders", [(0.0, 0.0), (1.0, 1.0)])
def test_no_leader_or_two_leaders_fail(
    leaders: tuple[float, float], port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "PATIENCE_SECONDS", 0)
    with replica("127.0.0.1", port, metrics(leaders[0])), replica("127.0.0.2", port, metrics(leaders[1])):
        assert check.main("lorarl-metrics", port) == 1
    output = capsys.readouterr().out
    assert f"{int(sum(leaders))} of them lead (expected 1)" in output
    assert "kubectl logs" in output


def test_a_replica_that_does_not_answer_is_named(port: int) -> None:
    with replica("127.0.0.1", port, metrics(1.0)):
        good, words = check.state("lorarl-metrics", port)
    assert not good
    assert f"the metrics at lorarl-metrics:{port} cannot be read" in words


def test_metrics_of_another_program_are_refused(port: int) -> None:
    with replica("127.0.0.1", port, "up 1\n"), replica("127.0.0.2", port, metrics(1.0)):
        good, words = check.state("lorarl-metrics", port)
    assert not good
    assert "have no lorarl_operator_leader" in words


def test_a_name_is_looked_up() -> None:
    assert "127.0.0.1" in load().replicas("localhost", 80)
    good, words = load().state("lorarl-metrics.invalid", 80)
    assert not good
    assert "cannot be read" in words
