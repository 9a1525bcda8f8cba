"""Stores and the hub behind a proxy, and with certificates of a private authority: by the variables that pods get."""

from __future__ import annotations

import http.server
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.s3_server import S3Server

STORE = (
    "import sys; from lorarl_trainer.storage import RetryPolicy, open_store;"
    "keys = {'AWS_ACCESS_KEY_ID': 'a', 'AWS_SECRET_ACCESS_KEY': 'b', 'AWS_REGION': 'c'};"
    "keys['AWS_ENDPOINT_URL'] = sys.argv[1];"
    "quick = RetryPolicy(deadline_seconds=0.1, read_deadline_seconds=0.1, first_wait_seconds=0.01);"
    "print(open_store('s3://bucket/folder', keys, retries=quick).get('x'))"
)
HUB = "import sys; from huggingface_hub import hf_hub_download; hf_hub_download('a/b', 'config.json')"
OPENSSL = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-days", "2"]


class Asked(http.server.BaseHTTPRequestHandler):
    """Notes what it is asked for, and has nothing."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def server(tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """A server with its port, and the paths that it was asked for."""
    handler = type("Handler", (Asked,), {"asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as one:
        if tls:
            one.socket = tls.wrap_socket(one.socket, server_side=True)
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        try:
            yield one.server_port, handler.asked
        finally:
            one.shutdown()
            thread.join()


def run(code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private authority, and a certificate of it for this machine."""
    folder = tmp_path_factory.mktemp("ca")

    def openssl(*arguments: str) -> None:
        subprocess.run([*OPENSSL, *arguments], cwd=folder, check=True, capture_output=True)

    openssl("-x509", "-subj", "/CN=private", "-keyout", "ca.key", "-out", "ca.crt")
    named = ("-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE")
    issued = ("-x509", "-CA", "ca.crt", "-CAkey", "ca.key")
    openssl(*issued, "-subj", "/CN=localhost", *named, "-keyout", "server.key", "-out", "server.crt")
    return folder


def test_a_bundle_lets_stores_and_the_hub_trust_a_private_authority(authority: Path, tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(authority / "server.crt", authority / "server.key")
    with server(tls) as (port, asked):
        url, trusted = f"https://localhost:{port}", {"SSL_CERT_FILE": str(authority / "ca.crt")}
        hub = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path)}
        assert run(STORE, url).returncode != 0
        assert asked == []
        assert run(STORE, url, **trusted).stdout == "None\n"
        run(HUB, **hub, **trusted)
        assert {"/bucket/folder/x", "/a/b/resolve/main/config.json"} <= set(asked)


def test_stores_and_the_hub_go_through_a_proxy(s3: S3Server, tmp_path: Path) -> None:
    with server() as (port, asked):
        proxy = {"HTTP_PROXY": f"http://127.0.0.1:{port}"}
        hub = {"HF_ENDPOINT": "http://hub.example.com", "HF_HOME": str(tmp_path)}
        run(STORE, "http://store.example.com", **proxy)
        run(HUB, **proxy, **hub)
        through = {"http://store.example.com/bucket/folder/x", "http://hub.example.com/a/b/resolve/main/config.json"}
        assert through <= set(asked)
        del asked[:]
        run(STORE, s3.url, **proxy, NO_PROXY="localhost,127.0.0.1")
        assert asked == []
