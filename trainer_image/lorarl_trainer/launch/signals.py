"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second Ctrl-C ends the run at once.

Before the first step there is nothing to save, and the first one ends the run at once too.

Ray installs its own handler when it starts. At SIGTERM it prints a stack trace, calls ours, and aborts the process
three seconds later, in the middle of the last checkpoint. That is why `install` is called after Ray's start, and why
Ray's alarm is cancelled.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lorarl_trainer.progress import Progress, Warned


class Interruption:
    """Installs the handlers for the duration of a run. The first signal sets `asked`."""

    def __init__(self, progress: Progress) -> None:
        """`progress` is where the first signal is acknowledged."""
        self.asked = asyncio.Event()
        self.twice = False
        self.finishes: Callable[[], str | None] = lambda: None
        """Returns what the run finishes once it is asked to end, in words; None if it ends at once. Before its first
        step, there is nothing to save."""
        self._progress = progress
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers in the running event loop, replacing any others."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        signal.alarm(0)  # cancel Ray's alarm, set if a signal came while Ray started
        name = signal.Signals(number).name
        self.twice = self.asked.is_set() and number == signal.SIGINT
        if self.asked.is_set() and not self.twice:
            return
        self.asked.set()
        if (finishes := self.finishes()) and not self.twice:
            # SIGTERM comes from a system: there may be no keyboard.
            faster = " Ctrl-C again stops at once." if number == signal.SIGINT else ""
            self._progress.emit(Warned(f"{name}: {finishes}.{faster}"))
        elif self._task is not None:
            self._task.cancel()
