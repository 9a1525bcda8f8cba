"""`lorarl open`: the report of one run, served on this machine. It follows the run while that writes its files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY, read_summary
from lorarl_trainer.progress.page import json_in_html
from lorarl_trainer.progress.report import report_data, report_page
from lorarl_trainer.progress.runs import state_of
from lorarl_trainer.progress.samples import SAMPLES

HOST = "127.0.0.1"
FIRST_PORT = 8300
"""Tried first, then the next ones, so that the address of a page that is open stays the same."""
PORTS = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A body with its type and version."""

    body: bytes
    kind: str
    etag: str


class Report:
    """The report of a run, made again only when its files have changed."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._lock = threading.Lock()
        self._data: Answer | None = None

    def page(self) -> Answer:
        """Return the page with the data of this moment."""
        html = report_page(report_data(self._out_dir), live=True)
        return Answer(html.encode(), "text/html; charset=utf-8", self.version())

    def data(self) -> Answer:
        """Return the data for a page that is open."""
        with self._lock:
            version = self.version()  # before the files are read: what is written meanwhile makes another version
            if self._data is None or self._data.etag != version:
                body = json_in_html(report_data(self._out_dir)).encode()
                self._data = Answer(body, "application/json", version)
            return self._data

    def version(self) -> str:
        """Return a text that changes when the run writes, and when its process ends without a word."""
        stats = [path.stat() for name in (METRICS, SAMPLES, SUMMARY) if (path := self._out_dir / name).exists()]
        parts = [f"{stat.st_mtime_ns:x}-{stat.st_size:x}" for stat in stats]
        return f'"{state_of(read_summary(self._out_dir))}-{"-".join(parts)}"'


def open_server(out_dir: Path, port: int | None) -> ThreadingHTTPServer:
    """Return a server of the run's report on this machine's own address.

    `port`: the one to use; None for a free one, FIRST_PORT if it is.

    Raises:
        InputError: the port cannot be used.
    """
    report = Report(out_dir)
    routes = {"/": report.page, "/data.json": report.data}
    for number in [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + PORTS), 0]:
        try:
            return ThreadingHTTPServer((HOST, number), _handler(routes))
        except OSError as error:
            reason = error.strerror
    raise InputError("--port", f"{port}, which cannot be used ({reason})", "a free port", "Leave --port out.")


def _handler(routes: dict[str, Callable[[], Answer]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page or its data; with nothing but a status if the asker has this version."""
            make = routes.get(self.path.partition("?")[0])
            # A page elsewhere may resolve its own name to this address. Its requests would carry that name.
            if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
                self.send_error(HTTPStatus.FORBIDDEN)
            elif make is None:
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._send(make())

        def _send(self, answer: Answer) -> None:
            same = self.headers.get("If-None-Match") == answer.etag
            body = b"" if same else answer.body
            self.send_response(HTTPStatus.NOT_MODIFIED if same else HTTPStatus.OK)
            self.send_header("ETag", answer.etag)
            self.send_header("Cache-Control", "no-cache")
            if not same:
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing: a line every two seconds would bury the address."""

    return Handler
