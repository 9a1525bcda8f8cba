"""Runs in folders, written by the sinks that write those of real ones, and the dashboard of them over HTTP."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.dashboard import place as place_module
from lorarl_trainer.dashboard.serve import Address, dashboard
from lorarl_trainer.progress import Event, Progress
from lorarl_trainer.progress.events_file import EventsFile
from lorarl_trainer.progress.metrics_file import MetricsFile, SummaryFile
from lorarl_trainer.progress.samples import SamplesFile
from support.cluster.processes import until as wait
from unit.trainer.progress.runs import grpo_run, run_started, sampled


def progress_into(folder: Path) -> Progress:
    folder.mkdir(parents=True, exist_ok=True)
    return Progress([MetricsFile(folder), SamplesFile(folder), EventsFile(folder), SummaryFile(folder)], [])


def recorded(folder: Path, steps: int = 5, **changes: Any) -> Path:
    """Record a whole run whose start has these changes: `job`, `base_model`, `algorithm`, ..."""
    first, *rest = grpo_run(folder, total=steps)
    record(folder, [replace(run_started(folder, steps), **changes), sampled(1), *rest])
    assert first == run_started(folder, steps)
    return folder


def record(folder: Path, events: Sequence[Event]) -> None:
    with progress_into(folder) as progress:
        for event in events:
            progress.emit(event)


@dataclass(frozen=True)
class Reply:
    status: int
    text: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Client:
    """Asks a dashboard."""

    url: str

    def get(self, path: str = "", **headers: str) -> Reply:
        """Return the answer to a request, whatever its status. Underscores in names of headers are dashes."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, headers=given)
        try:
            with urllib.request.urlopen(request) as answer:
                return Reply(answer.status, answer.read().decode(), dict(answer.headers))
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.read().decode(), dict(error.headers))


@contextmanager
def served(places: Sequence[str | Path], cache: Path, *, key: str | None = None) -> Iterator[Client]:
    """Serve the dashboard of these places on a free port. Folders are looked at more often than in life."""
    names = [str(place) for place in places]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_module, "FOLDER_SECONDS", 0.05)
        with dashboard(names, Address(port=0, key=key), cache) as server:
            yield from _answering(server)


def _answering(server: ThreadingHTTPServer) -> Iterator[Client]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Client(f"http://127.0.0.1:{server.server_address[1]}/")
    finally:
        server.shutdown()
        thread.join()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for what a page says: a place is looked at in the background."""
    wait(seconds, "the page says so", condition, patience=1.0)
