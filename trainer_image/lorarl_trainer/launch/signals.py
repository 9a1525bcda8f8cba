"""Ctrl-C and SIGTERM: the first asks for a checkpoint and an orderly end, the second Ctrl-C ends the run at once.

Ray installs a handler of its own when it starts. At SIGTERM it prints a stack trace, calls ours, and aborts the process three seconds
later, in the midst of the last checkpoint: hence `install` after Ray's start, and the alarm that is called off.
"""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

from lorarl_trainer.progress import Progress, Warned


class Interruption:
    """Installs the handlers for the time of a run; `asked` is set by the first signal."""

    def __init__(self, progress: Progress) -> None:
        """Tell the user through `progress` what was understood."""
        self.asked = asyncio.Event()
        self.twice = False
        self.can_finish = False
        """Whether there is a loop that looks at `asked`; before, there is nothing to save and the run ends at once."""
        self._progress = progress
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        """Install the handlers."""
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers in the running event loop, in place of any other."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back to Python."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    def _on_signal(self, number: int) -> None:
        signal.alarm(0)  # Ray's, of a signal that came while it started
        name = signal.Signals(number).name
        self.twice = self.asked.is_set() and number == signal.SIGINT
        if self.asked.is_set() and not self.twice:
            return
        self.asked.set()
        if self.can_finish and not self.twice:
            self._progress.emit(
                Warned(f"{name}: finishing this step, then publishing a checkpoint. Ctrl-C (again) stops at once.")
            )
        elif self._task is not None:
            self._task.cancel()
