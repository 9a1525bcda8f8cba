"""What a terminal shows while a run starts: what it is doing, for how long, and how long it may still take.

Downloads have their own lines, with a bar.
"""

from __future__ import annotations

import math
import time
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from lorarl_trainer.progress.events import Downloading


class DownloadBar(ProgressColumn):
    """The bar of a download, whose total is known; nothing in the line of the start."""

    def __init__(self) -> None:
        super().__init__()
        self._bar = BarColumn(bar_width=24)

    def render(self, task: Task) -> RenderableType:
        """Return the bar."""
        return Text() if task.total is None else self._bar.render(task)


class TimeLeft(ProgressColumn):
    """The time of a start so far, and the time left if it takes as long as the last one. Of a download, the bytes."""

    def __init__(self, last: float | None) -> None:
        """`last` is how long the last start took in seconds, if that is known."""
        super().__init__()
        self._last, self._began = last, time.monotonic()

    def render(self, task: Task) -> Text:
        """Return the text at the end of the line."""
        if task.total is not None:
            return Text(download_text(int(task.completed), int(task.total), task.time_remaining), style="dim")
        return Text(start_time(time.monotonic() - self._began, self._last), style="dim")


class StartBar:
    """A line with a spinner, and one with a bar for each download."""

    def __init__(self, stream: TextIO, last: float | None = None) -> None:
        """Show them on a terminal. `last` is how long the last start took in seconds, if that is known."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadBar(), TimeLeft(last))
        self.progress = Progress(*columns, console=Console(file=stream), refresh_per_second=4, transient=True)
        self._start = self.progress.add_task("", total=None)
        self._downloads: dict[str, TaskID] = {}
        self.progress.start()

    def describe(self, text: str) -> None:
        """Say what the start is doing."""
        self.progress.update(self._start, description=text)

    def download(self, event: Downloading) -> None:
        """Show how far a download is. Its line goes when it is over."""
        if event.done >= event.total:
            if (over := self._downloads.pop(event.what, None)) is not None:
                self.progress.remove_task(over)
            return
        if event.what not in self._downloads:
            self._downloads[event.what] = self.progress.add_task(f"downloading {event.what}", total=event.total)
        self.progress.update(self._downloads[event.what], completed=event.done)


def download_text(done: int, total: int, left: float | None) -> str:
    """Return how much of a download is there, and the seconds that are left if they are known."""
    text = f"{size_text(done)} of {size_text(total)}"
    return text if left is None else f"{text}, about {duration(left)} left"


def size_text(count: float) -> str:
    """Return bytes as 512 bytes, 3.4 MB or 15.2 GB, in decimal units as stores and hubs list them."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} bytes"


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
