"""A STAND-IN: what answers for Ray's dashboards where kwok plays the pods. Everything else of the platform is real.

kwok's pods run nothing, so no Ray is there to tell KubeRay how a job is doing. KubeRay's own client asks
http://<head service>.<namespace>.svc.cluster.local:8265/api/jobs/<id> and honours HTTP_PROXY. This server is that
proxy, and answers for all head services. A test sets the state of a RayJob's job, and KubeRay asks for it every 3 s.

    dashboard.set("default", "my-job-1", "FAILED", "CUDA out of memory")
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

RUNNING = "RUNNING"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
Key = tuple[str, str]


@dataclass
class RayDashboard:
    """The jobs of all Ray clusters, by (namespace, name of the RayJob). A job of which no test spoke is RUNNING."""

    url: str = ""
    # (namespace, RayJob) of each request to stop, in order.
    stops: list[Key] = field(default_factory=list)
    # While set, no dashboard answers, as when the network is cut.
    unreachable: bool = False
    _jobs: dict[Key, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set(self, namespace: str, rayjob: str, status: str, message: str = "") -> None:
        """Say that the job is PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED; to KubeRay `message` is Ray's own."""
        with self._lock:
            job = self._jobs.setdefault((namespace, rayjob), {"start_time": _milliseconds()})
            job.update(status=status, message=message)
            if status in ENDED:
                job["end_time"] = _milliseconds()

    def status(self, namespace: str, rayjob: str) -> str:
        """What was said last of a job."""
        with self._lock:
            job = self._jobs.get((namespace, rayjob))
            return job["status"] if job else RUNNING

    def answer(self, method: str, url: str) -> tuple[int, dict[str, Any]]:
        """The answer to one of KubeRay's requests: HTTP status and JSON."""
        host, path = urlsplit(url).hostname or "", urlsplit(url).path
        asked = re.fullmatch(r"/api/jobs/([^/]+)(/stop)?", path)
        if not (service := re.fullmatch(r"[^.]+\.([^.]+)\.svc\.cluster\.local", host)) or not asked:
            return 404, {"detail": f"no dashboard answers {method} {url}"}
        submission, stop = asked.groups()
        # KubeRay's submission id is the RayJob's name with five random letters.
        key = (service[1], submission.rsplit("-", 1)[0])
        with self._lock:
            known = self._jobs.get(key)
            if known and known.setdefault("submission_id", submission) != submission:
                # Another RayJob of the same name, or the same one that a queue released again: its job starts again.
                self._jobs[key] = {
                    "start_time": _milliseconds(),
                    "status": RUNNING,
                    "message": "",
                    "submission_id": submission,
                }
        if stop:
            self.stops.append(key)
            already_ended = self.status(*key) in ENDED
            if not already_ended:
                self.set(*key, "STOPPED", "Job was intentionally stopped.")
            return 200, {"stopped": not already_ended}
        if key not in self._jobs:
            self.set(*key, RUNNING)
        return 200, {"type": "SUBMISSION", "entrypoint": "", **self._jobs[key], "submission_id": submission}


@contextmanager
def ray_dashboard() -> Iterator[RayDashboard]:
    """Serve until the block ends; KubeRay's HTTP_PROXY is to be `url`."""
    dashboard = RayDashboard()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Headers and body in one write: two would wait 40 ms for each other on a kept connection.
        wbufsize = -1

        def do_GET(self) -> None:
            self.serve()

        def do_POST(self) -> None:
            self.serve()

        def serve(self) -> None:
            if dashboard.unreachable:
                self.close_connection = True
                return
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = dashboard.answer(self.command, self.path)
            body = json.dumps(answer).encode()
            self.send_response_only(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    dashboard.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="ray-dashboard", daemon=True
    )
    thread.start()
    try:
        yield dashboard
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that KubeRay broke off at its end are no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def _milliseconds() -> int:
    return int(time.time() * 1000)
