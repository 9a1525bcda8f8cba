"""When completions that have ended are handed over, while others are still being generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

PART_SECONDS = 0.2
"""How long a completion that has ended waits for others. To hand over a part takes the engine's thread a millisecond or so, and
completions that end together are to be one part: where all are of about the same length, there is no other."""


def in_parts[Output](
    steps: Iterable[Sequence[Output]], count: int, clock: Callable[[], float] = time.perf_counter
) -> Iterator[list[Output]]:
    """Put together what ends in an engine's steps; the last part, which may be empty, comes after the last step.

    Args:
        steps: what ended in each step, mostly nothing.
        count: how many outputs there will be.
        clock: seconds.
    """
    part: list[Output] = []
    since, left = 0.0, count
    for ended in steps:
        if ended:
            since = since if part else clock()
            part += ended
            left -= len(ended)
        if part and left and clock() - since >= PART_SECONDS:
            yield part
            part = []
    yield part
