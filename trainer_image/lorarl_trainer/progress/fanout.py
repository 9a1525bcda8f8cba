"""`Progress` passes each event to every sink. A sink that is slow or fails does not affect training."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from lorarl_trainer.progress.events import Event, Warned

MAX_BEHIND = 10_000
"""How many events a sink may be behind. One that is further behind is dropped, so that it cannot fill the memory."""

CLOSE_SECONDS = 20.0
"""How long a sink may take to send what is left after the run has ended."""


class Sink(Protocol):
    """A destination of progress. An exception disables only this sink, with one warning."""

    name: str

    def on_event(self, event: Event) -> None:
        """Handle one event. A sink ignores the events that it does not need."""

    def close(self) -> None:
        """Send what is left. Called once, after the last event."""


class Progress:
    """Passes events to sinks.

    Direct sinks run inside `emit`, so they must be fast. Each queued sink has its own thread: one that hangs delays
    neither training nor the other sinks. Use `Progress` as a context manager, which closes every sink on exit.
    """

    def __init__(self, direct: Sequence[Sink], queued: Sequence[Sink], close_seconds: float = CLOSE_SECONDS) -> None:
        """Keep the sinks. Nothing is opened before the first event."""
        self._direct = [_Direct(sink, self.warn) for sink in direct]
        self._queued = [_Queued(sink, self.warn, close_seconds) for sink in queued]
        self._warned: set[str] = set()

    def emit(self, event: Event) -> None:
        """Pass the event to every sink. This takes some tens of microseconds and never raises a sink's exception."""
        for direct in self._direct:
            direct.send(event)
        for queued in self._queued:
            queued.send(event)

    def warn(self, text: str) -> None:
        """Warn the user."""
        self.emit(Warned(text))

    def warn_once(self, key: str, text: str) -> None:
        """Warn the user, unless a warning with the same key was emitted before."""
        if key not in self._warned:
            self._warned.add(key)
            self.warn(text)

    def close(self) -> None:
        """Close every sink.

        The first queued sink, the console, is closed last so that it still shows the warnings of the others.
        """
        for queued in reversed(self._queued[1:]):
            queued.close()
        for direct in reversed(self._direct):
            direct.close()
        for queued in self._queued[:1]:
            queued.close()

    def __enter__(self) -> Self:
        """Open nothing: sinks open at their first event."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Direct:
    """Runs a sink in the caller's thread. It needs a lock because warnings come from the threads of other sinks."""

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
            self._warn(_warning_of(self._sink, failure))


class _Queued:
    """Runs a sink in its own thread, which starts with the first event."""

    def __init__(self, sink: Sink, warn: Callable[[str], None], close_seconds: float) -> None:
        self._sink, self._warn, self._close_seconds = sink, warn, close_seconds
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # events come from the threads of other sinks too
        self._failed = False

    def send(self, event: Event) -> None:
        if self._failed:
            return
        if self._events.qsize() >= MAX_BEHIND:
            self._fail(TimeoutError(f"it is {MAX_BEHIND:,} events behind"))
            return
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"progress-{self._sink.name}", daemon=True)
                thread.start()
                self._thread = thread
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
        self._warn(_warning_of(self._sink, error))


def _warning_of(sink: Sink, error: Exception) -> str:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return f"{sink.name}: {reason}. Training continues, but nothing more is written there."
