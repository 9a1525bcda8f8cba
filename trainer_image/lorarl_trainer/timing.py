"""Where the time of a start goes: from the process's start to the first token and the first update, part by part.

Driver and workers each time their own parts, by the clock on the wall: on different machines they agree as well as those clocks do.
Parts run side by side; `critical_path` says which of them the start had to wait for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OTHER = "other"
"""What no part accounts for."""
_SLACK = 0.1
"""Seconds that a part may still run when what waits for it begins: clocks differ, and a process is started before its caller knows."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a start.

    Attributes:
        name: what was done. A part within another is called after it: engine/load.
        who: the process that did it, driver or worker.
        begin, end: Unix time, seconds.
    """

    name: str
    who: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class StartClock:
    """Times the parts of one process's start; the first is that of the process itself, up to now."""

    def __init__(self, who: str, process: str) -> None:
        """`process` is what the time up to now is called."""
        self._who = who
        self.parts: list[Span] = []
        self.add(process, process_start(), time.time())

    def add(self, name: str, begin: float, end: float) -> None:
        """Take in what was timed elsewhere."""
        self.parts.append(Span(name, self._who, begin, end))

    def add_first(self, name: str, begin: float, end: float) -> None:
        """Take in what was timed elsewhere, unless there is a part of that name."""
        if all(part.name != name for part in self.parts):
            self.add(name, begin, end)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block, the first time that it is run to its end."""
        begin = time.time()
        yield
        self.add_first(name, begin, time.time())


def process_start() -> float:
    """Return when this process was started, Unix time; now where the system does not tell (it is no Linux)."""
    try:
        after_the_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(after_the_name[19]) / os.sysconf("SC_CLK_TCK")  # proc(5): field 22, starttime
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, AttributeError):
        return time.time()


def critical_path(parts: Sequence[Span], end: float) -> list[tuple[str, float]]:
    """Return what `end` had to wait for: names in the order of time, and seconds that add up to all from the first part's begin.

    Backwards from the end: what ended last before it was waited for, and before that began, what ended last before that. What still
    ran then was not waited for. Parts of parts are left out.
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
    """Return the seconds of each name of a path, in the order in which they first come; `other` last."""
    seconds: dict[str, float] = {}
    for name, spent in path:
        seconds[name] = seconds.get(name, 0.0) + spent
    rest = seconds.pop(OTHER, None)
    return seconds if rest is None else seconds | {OTHER: rest}
