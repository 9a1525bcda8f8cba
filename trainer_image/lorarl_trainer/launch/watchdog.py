"""Records where a training hangs, before `progressDeadlineSeconds` ends it: the stacks of driver and workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_trainer.progress import Event
from lorarl_trainer.workers.stacks import own_stacks

LOOK_SECONDS = 2.0
MARGIN_SECONDS = 15.0
"""How long before the deadline the stacks are taken. Then they are published, which takes a moment."""


def due_after(limit: float) -> float:
    """Return after how many seconds without news the stacks are taken: shortly before the deadline."""
    return max(limit / 2, limit - MARGIN_SECONDS)


class Watchdog:
    """Notes when something happens. It is a sink of progress, as the job's status is, which the operator looks at."""

    name = "watchdog"

    def __init__(self, manifest: Path, logs: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch nothing before `start`.

        `manifest`: the job's, in a mounted ConfigMap: the deadline may change at any time.
        """
        self._manifest, self._logs, self._clock = manifest, logs, clock
        self._seen: bytes | None = None
        self._limit: int | None = None
        self._workers: Callable[[], list[str]] = list
        self._publish: Callable[[], None] = lambda: None
        self._news = clock()
        self._taken_for: float | None = None
        self._over = threading.Event()

    def start(self, publish: Callable[[], None]) -> None:
        """Begin. `publish` is called when there are new files."""
        self._publish = publish
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch(self, stacks: Callable[[], list[str]]) -> None:
        """Take the stacks of these workers: the present ones, by rank."""
        self._workers = stacks

    def on_event(self, event: Event) -> None:
        """Note that something happened."""
        self._news = self._clock()

    def close(self) -> None:
        self._over.set()

    def look(self) -> bool:
        """Take the stacks if it is time; return whether that was so. Each silence is recorded once."""
        limit, news = self._deadline(), self._news
        if limit is None or news == self._taken_for or self._clock() - news < due_after(limit):
            return False
        self._taken_for = news
        self._logs.mkdir(parents=True, exist_ok=True)
        title = f"No news for {self._clock() - news:.0f} s of progressDeadlineSeconds, {limit} s.\n"
        (self._logs / "stack-driver.log").write_text(title + own_stacks())
        self._publish()  # already now: the workers may not answer
        for rank, text in enumerate(self._workers()):
            (self._logs / f"stack-{rank}.log").write_text(title + text)
        self._publish()
        return True

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - what only explains a failure must not cause one
                print(f"warning: the stacks of a training without progress were not recorded: {error}")

    def _deadline(self) -> int | None:
        text = self._manifest.read_bytes()
        if text != self._seen:
            self._seen = text
            try:
                self._limit = load_job(self._manifest).spec.progress_deadline_seconds
            except ManifestError:
                return self._limit
        return self._limit
