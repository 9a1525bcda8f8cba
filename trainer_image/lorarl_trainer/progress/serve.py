"""`lorarl open`: the report of one run, served on this machine. It follows the run while that writes its files."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from lorarl_trainer.progress import web
from lorarl_trainer.progress.events_file import EVENTS
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY
from lorarl_trainer.progress.page import json_in_html
from lorarl_trainer.progress.report import report_data, report_page
from lorarl_trainer.progress.samples import SAMPLES
from lorarl_trainer.progress.standing import state_in
from lorarl_trainer.progress.web import JSON, Answer

FIRST_PORT = 8300


class Report:
    """The report of a run, made again only when its files have changed."""

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._lock = threading.Lock()
        self._data: Answer | None = None

    def page(self) -> Answer:
        """Return the page with the data of this moment."""
        html = report_page(report_data(self._out_dir), live="lorarl open")
        return Answer(html.encode(), etag=self.version())

    def data(self) -> Answer:
        """Return the data for a page that is open."""
        with self._lock:
            version = self.version()  # before the files are read: what is written meanwhile makes another version
            if self._data is None or self._data.etag != version:
                body = json_in_html(report_data(self._out_dir)).encode()
                self._data = Answer(body, JSON, version)
            return self._data

    def version(self) -> str:
        """Return a text that changes when the run writes, and when its process ends without a word."""
        stats = [path.stat() for name in (METRICS, SAMPLES, SUMMARY, EVENTS) if (path := self._out_dir / name).exists()]
        parts = [f"{stat.st_mtime_ns:x}-{stat.st_size:x}" for stat in stats]
        return f'"{state_in(self._out_dir)}-{"-".join(parts)}"'


def open_server(out_dir: Path, port: int | None) -> ThreadingHTTPServer:
    """Return a server of the run's report on this machine's own address.

    `port`: the one to use; None for a free one, FIRST_PORT if it is.

    Raises:
        InputError: the port cannot be used.
    """
    report = Report(out_dir)
    routes = {"/": report.page, "/data.json": report.data}
    return web.open_server(lambda path, _: routes[path]() if path in routes else None, FIRST_PORT, port)
