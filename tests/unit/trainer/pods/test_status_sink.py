"""How often the status is written, to a loopback server that answers as the API server does."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from lorarl_trainer.pods import status_sink
from lorarl_trainer.pods.status_sink import StatusSink, report_failure
from unit.trainer.pods.test_status import CHECKPOINT, JOB, MANIFEST, STARTED, STEP

WAIT = 20.0
BEFORE = {"step": 20, "totalSteps": 30, "progress": "20/30", "phase": "Starting"}
type Write = tuple[float, dict[str, Any]]


@pytest.fixture
def writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue[Write]]:
    """When each status arrived, and the status."""
    arrived: queue.Queue[Write] = queue.Queue()

    class ApiServer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"status": BEFORE})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            arrived.put((time.monotonic(), body["status"]))
            self._answer(body)

        def _answer(self, body: dict[str, Any]) -> None:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    yield arrived
    server.shutdown()
    server.server_close()
    thread.join(WAIT)


def test_steps_wait_and_what_users_wait_for_does_not(
    writes: queue.Queue[Write], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand jobs of short steps would otherwise be a thousand writes a second."""
    monkeypatch.setattr(status_sink, "MIN_SECONDS", 0.01)
    monkeypatch.setattr(status_sink, "STEP_SECONDS", 2.0)
    sink = StatusSink(JOB, attempt=1)
    sink.on_event(STARTED)
    started, status = writes.get(timeout=WAIT)
    assert status["progress"] == "0/30"
    sink.on_event(STEP)
    sink.on_event(CHECKPOINT)
    published, status = writes.get(timeout=WAIT)
    assert (status["progress"], status["adapter"]["step"]) == ("7/30", 7)
    assert published - started < 2.0, "a checkpoint does not wait"
    sink.on_event(replace(STEP, step=8))
    stepped, status = writes.get(timeout=WAIT)
    assert status["progress"] == "8/30"
    assert stepped - published > 1.9
    sink.on_event(replace(STEP, step=9))
    sink.close()
    ended, status = writes.get(timeout=WAIT)
    assert status["progress"] == "9/30"
    assert ended - stepped < 2.0, "nor does the end"
    assert writes.empty()


def test_a_manifest_that_cannot_be_loaded_is_reported(writes: queue.Queue[Write], tmp_path: Path) -> None:
    """Of the manifest, only the metadata need be readable."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(MANIFEST.replace("spec:", "spec: {}\nunknown:"))
    report_failure(manifest, 3, "InvalidInput", "unknown: got an unknown key")
    _, status = writes.get(timeout=WAIT)
    failure = status.pop("failure")
    assert (failure["reason"], failure["message"], failure["attempt"]) == (
        "InvalidInput",
        "unknown: got an unknown key",
        3,
    )
    assert status == {key: BEFORE[key] for key in ("step", "totalSteps", "progress")}
