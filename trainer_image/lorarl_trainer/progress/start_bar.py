"""What a terminal shows while a run starts: what it is doing, for how long, and how long it may still take."""

from __future__ import annotations

import math
import time
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text


class StartTime(ProgressColumn):
    """The time of a start so far, and the time left if it takes as long as the last one."""

    def __init__(self, last: float | None) -> None:
        """`last` is how long the last start took in seconds, if that is known."""
        super().__init__()
        self._last, self._began = last, time.monotonic()

    def render(self, task: Task) -> Text:
        """Return the text beside the spinner."""
        return Text(start_time(time.monotonic() - self._began, self._last), style="dim")


def start_bar(stream: TextIO, last: float | None) -> tuple[Progress, TaskID]:
    """Start a line with a spinner; its description says what the start is doing."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), StartTime(last))
    bar = Progress(*columns, console=Console(file=stream), refresh_per_second=4, transient=True)
    task = bar.add_task("", total=None)
    bar.start()
    return bar, task


def start_time(passed: float, last: float | None) -> str:
    """Return how long a start has taken, and what is left of it if the last one is known."""
    if last is None:
        return duration(passed)
    if passed < last:
        return f"{duration(passed)}, about {duration(last - passed)} left"
    return f"{duration(passed)}, longer than the last start ({duration(last)})"


def duration(seconds: float) -> str:
    """Return seconds as 0:07, 12:30 or 3:04:05."""
    if not math.isfinite(seconds):
        return "?"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
