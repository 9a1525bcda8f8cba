"""A registry for OCI artifacts, as much of it as helm needs to push and pull a chart."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from urllib.parse import parse_qs, urlsplit


@contextmanager
def oci_registry() -> Iterator[str]:
    """Serve a registry on this machine, and yield HOST:PORT. It forgets everything at its end."""
    handler = type("Handler", (_Handler,), {"blobs": {}, "manifests": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    blobs: dict[str, bytes]
    manifests: dict[str, tuple[str, bytes]]
    """Media type and content by path, both by tag and by digest."""

    def do_POST(self) -> None:
        """The start of an upload."""
        self._read()
        self._answer(202, {"Location": self.path})

    def do_PUT(self) -> None:
        url, body = urlsplit(self.path), self._read()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if "/manifests/" in url.path:
            found = (self.headers["Content-Type"], body)
            self.manifests[url.path] = self.manifests[f"{url.path.rpartition('/')[0]}/{digest}"] = found
        elif parse_qs(url.query)["digest"] == [digest]:
            self.blobs[digest] = body
        else:
            return self._answer(400)
        return self._answer(201, {"Location": url.path, "Docker-Content-Digest": digest})

    def do_GET(self) -> None:
        url = urlsplit(self.path).path
        blob = self.blobs.get(url.rpartition("/")[2])
        kind, body = self.manifests.get(url) or ("application/octet-stream", blob)
        if body is None:
            return self._answer(404)
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        return self._answer(200, {"Content-Type": kind, "Docker-Content-Digest": digest}, body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, code: int, headers: Mapping[str, str] = MappingProxyType({}), body: bytes = b"") -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
