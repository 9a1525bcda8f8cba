"""`Progress`: hands each event to every sink, and keeps their slowness and their failures away from training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from .events import Event, Warned

MAX_BEHIND = 10_000
"""Events that a slow sink may be behind before it is given up, so that it cannot fill the memory."""

CLOSE_SECONDS = 20.0
"""How long a sink may take, once the run has ended, for what it still has to send."""


class Sink(Protocol):
    """Somewhere that progress goes. Every exception ends this sink, with one warning, and nothing else."""

    name: str

    def on_event(self, event: Event) -> None:
        """Take one event. Events that a sink does not care for are ignored."""

    def close(self) -> None:
        """Send what is left. Called once, after the last event."""


class Progress:
    """Fans events out to sinks.

    Direct sinks run within `emit`, so they must be fast; queued ones each have a thread of their own, so that one which
    hangs holds up neither training nor the others. Use it as a context manager: leaving it closes every sink.
    """

    def __init__(self, direct: Sequence[Sink], queued: Sequence[Sink], close_seconds: float = CLOSE_SECONDS) -> None:
        """Take the sinks; nothing is opened before the first event."""
        self._direct = [_Direct(sink, self._warn) for sink in direct]
        self._queued = [_Queued(sink, self._warn, close_seconds) for sink in queued]
        self._warned: set[str] = set()

    def emit(self, event: Event) -> None:
        """Tell every sink. Costs some tens of microseconds and never raises for what a sink does."""
        for direct in self._direct:
            direct.send(event)
        for queued in self._queued:
            queued.send(event)

    def warn_once(self, key: str, text: str) -> None:
        """Warn the user, unless something with the same key was said before."""
        if key not in self._warned:
            self._warned.add(key)
            self.emit(Warned(text))

    def close(self) -> None:
        """Close every sink; the first queued one, which is the console, last, so that it still shows the warnings of the others."""
        for queued in reversed(self._queued[1:]):
            queued.close()
        for direct in reversed(self._direct):
            direct.close()
        for queued in self._queued[:1]:
            queued.close()

    def _warn(self, text: str) -> None:
        self.emit(Warned(text))

    def __enter__(self) -> Self:
        """Nothing is opened before the first event."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every sink."""
        self.close()


class _Direct:
    """Runs a sink in the caller's thread; the lock is for warnings, which come from the sinks' threads."""

    def __init__(self, sink: Sink, warn: Callable[[str], None]) -> None:
        self._sink, self._warn = sink, warn
        self._lock = threading.Lock()
        self._failed = False

    def send(self, event: Event) -> None:
        self._guarded(lambda: self._sink.on_event(event))

    def close(self) -> None:
        self._guarded(self._sink.close)

    def _guarded(self, action: Callable[[], None]) -> None:
        failure: Exception | None = None
        with self._lock:
            if self._failed:
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001 - a sink may fail in any way and must not stop training
                self._failed, failure = True, error
        if failure is not None:
            self._warn(_given_up(self._sink, failure))


class _Queued:
    """Runs a sink in a thread of its own, which starts with the first event."""

    def __init__(self, sink: Sink, warn: Callable[[str], None], close_seconds: float) -> None:
        self._sink, self._warn, self._close_seconds = sink, warn, close_seconds
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._failed = False

    def send(self, event: Event) -> None:
        if self._failed:
            return
        if self._events.qsize() >= MAX_BEHIND:
            self._fail(TimeoutError(f"it is {MAX_BEHIND:,} events behind"))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"progress-{self._sink.name}", daemon=True)
            self._thread.start()
        self._events.put(event)

    def close(self) -> None:
        if self._thread is None:
            return
        self._events.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive() and not self._failed:
            self._fail(TimeoutError(f"it did not finish within {self._close_seconds:g} s"))

    def _run(self) -> None:
        try:
            while not self._failed and (event := self._events.get()) is not None:
                self._sink.on_event(event)
            if not self._failed:
                self._sink.close()
        except Exception as error:  # noqa: BLE001 - a sink may fail in any way and must not stop training
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._warn(_given_up(self._sink, error))


def _given_up(sink: Sink, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return f"{sink.name}: {reason}. Training goes on, and nothing more is written there."
