"""Counts the bytes of a download while it runs, for those who show them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnBytes = Callable[[str, int, int], None]
"""Gets the state of a download, from any thread: what is fetched, its bytes so far, and its bytes in all."""
INTERVAL_SECONDS = 0.25


class Meter:
    """The bytes of one download, which several threads add to."""

    def __init__(self, on_bytes: OnBytes | None, what: str, total: int) -> None:
        """Report to `on_bytes`, if there is one. `what` is the URI, and `total` all of its bytes."""
        self._on_bytes, self._what, self._total = on_bytes, what, total
        self._done, self._next = 0, 0.0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count bytes that have arrived."""
        self._count(lambda: self._done + count)

    def reach(self, done: int) -> None:
        """Count bytes that have arrived since the start, if they are more than before."""
        self._count(lambda: max(self._done, done))

    def _count(self, now_done: Callable[[], int]) -> None:
        with self._lock:
            self._done = now_done()
            if (now := time.monotonic()) >= self._next:
                self._next = now + INTERVAL_SECONDS
                self._report()

    def _report(self) -> None:
        if self._on_bytes is not None:
            self._on_bytes(self._what, min(self._done, self._total), self._total)

    def end(self) -> None:
        """Report that all bytes are there, or that no more will come."""
        self._done = self._total
        self._report()


@contextmanager
def metered(on_bytes: OnBytes | None, what: str, total: int) -> Iterator[Meter]:
    """Count a download of `total` bytes, and report its end however it ends."""
    meter = Meter(on_bytes, what, total)
    meter.add(0)
    try:
        yield meter
    finally:
        meter.end()
