"""The server of Kubeflow Trainer that pods report progress to, on loopback, with TLS and a token.

Read in kubeflow/trainer at v2.3.0, pkg/statusserver/server.go: what it accepts, it applies to the TrainJob's status.
"""

from __future__ import annotations

import json
import queue
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

Body = dict[str, Any]


@dataclass
class TrainJobServer:
    """A running server.

    Attributes:
        environment: what Kubeflow's controller sets in a TrainJob's pods.
        arrived: the token and the body of each request.
        answer: the status and the body for a request.
    """

    environment: dict[str, str]
    answer: Callable[[Body], tuple[int, Body]]
    arrived: queue.Queue[tuple[str, Body]] = field(default_factory=queue.Queue)

    @property
    def token(self) -> Path:
        return Path(self.environment["KUBEFLOW_TRAINER_SERVER_TOKEN"])


@contextmanager
def train_job_server(
    folder: Path, answer: Callable[[Body], tuple[int, Body]] = lambda body: (200, body)
) -> Iterator[TrainJobServer]:
    """Serve within the block. Certificate and token are in `folder`."""
    folder.mkdir(exist_ok=True)
    key, ca, token = folder / "tls.key", folder / "ca.crt", folder / "token"
    about = ["-subj", "/CN=kubeflow", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    make = ["openssl", "req", "-x509", *kind, *about, "-keyout", str(key), "-out", str(ca)]
    subprocess.run(make, check=True, capture_output=True)
    token.write_text("first\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = running.answer(body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            running.arrived.put((self.headers["Authorization"], body))

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(ca, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    path = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/sums/status"
    environment = {
        "KUBEFLOW_TRAINER_SERVER_URL": f"https://127.0.0.1:{server.server_port}{path}",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(ca),
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
    }
    running = TrainJobServer(environment, answer)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)
