"""Where the time of a start goes, part by part: from the process's start to the first token and the first update.

Driver and workers each time their own parts by wall-clock time. Times from different machines agree as well as their
clocks do. Parts run in parallel; `critical_path` says which of them the start had to wait for.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

OTHER = "other"
"""Name of the time that no part accounts for."""
_SLACK = 0.1
"""Seconds by which a part may end after the part that waited for it began.

Clocks differ, and a process starts before its caller knows.
"""
_STARTS_WORKERS = ("Ray", "devices")
"""The parts of the driver's start within which Ray starts the workers' processes."""


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a start.

    Attributes:
        name: what was done. The name of a part within another starts with the outer one's: engine/load.
        who: the process that did it, driver or worker.
        begin, end: Unix time in seconds.
    """

    name: str
    who: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.end - self.begin


class StartClock:
    """Times the parts of one process's start. The first part is the process itself, up to now."""

    def __init__(self, who: str, first: str, began: float | None = None, earlier: Sequence[Span] = ()) -> None:
        """Begin with the first part, or continue a clock of this process.

        `began`: the Unix time at which that part began, if not with the process. `earlier`: the parts of a clock that
        was started before it was known who this is. The first is among them.
        """
        self._who = who
        self.parts = [replace(part, who=who) for part in earlier]
        if not self.parts:
            self.add(first, process_start() if began is None else began, time.time())

    def add(self, name: str, begin: float, end: float) -> None:
        """Add a part that was timed elsewhere."""
        self.parts.append(Span(name, self._who, begin, end))

    def add_first(self, name: str, begin: float, end: float) -> None:
        """Add a part that was timed elsewhere, unless one of that name exists."""
        if all(part.name != name for part in self.parts):
            self.add(name, begin, end)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block. Only its first complete run counts."""
        begin = time.time()
        yield
        self.add_first(name, begin, time.time())


def with_worker(driver: Sequence[Span], worker: Sequence[Span]) -> list[Span]:
    """Return the parts of a start, given the driver's and a worker's.

    A worker's process may be there, and import, before the driver learns of it. What started it ends then.
    """
    there = min((part.begin for part in worker), default=math.inf)
    ended = [
        replace(part, end=min(part.end, max(part.begin, there))) if part.name in _STARTS_WORKERS else part
        for part in driver
    ]
    return [*ended, *worker]


def process_start() -> float:
    """Return the Unix time at which this process started; the current time where it is unknown (not Linux)."""
    try:
        after_the_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22, starttime
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, AttributeError):
        return time.time()


def critical_path(parts: Sequence[Span], end: float) -> list[tuple[str, float]]:
    """Return what `end` had to wait for: names and seconds in chronological order.

    The seconds add up to the time between the first part's begin and `end`. The path is found backwards: the part that
    ended last before `end` was waited for, then the part that ended last before that one began, and so on. Parts that
    were still running then were not waited for. Parts within parts are left out.
    """
    whole = [part for part in parts if "/" not in part.name]
    path: list[tuple[str, float]] = []
    while ended := [part for part in whole if part.begin < end and part.end <= end + _SLACK]:
        last = max(ended, key=lambda part: (part.end, -part.begin))
        if last.end < end:
            path.append((OTHER, end - last.end))
        path.append((last.name, min(last.end, end) - last.begin))
        end = last.begin
    if (began := min((part.begin for part in whole), default=end)) < end:
        path.append((OTHER, end - began))
    return path[::-1]


def by_name(path: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Return the seconds per name of a path, in order of first appearance; `other` comes last."""
    seconds: dict[str, float] = {}
    for name, spent in path:
        seconds[name] = seconds.get(name, 0.0) + spent
    rest = seconds.pop(OTHER, None)
    return seconds if rest is None else seconds | {OTHER: rest}
