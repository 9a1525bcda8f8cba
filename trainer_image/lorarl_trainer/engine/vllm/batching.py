"""When completions that have ended are handed over, while others are still being generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

CHUNK_SECONDS = 0.2
"""How long a completion that has ended waits for others.

Handing over a chunk takes about a millisecond of the engine's thread, so completions that end together should be one
chunk. If all have about the same length, there is only one.
"""


def in_chunks[Output](
    steps: Iterable[Sequence[Output]],
    more: Callable[[], bool],
    clock: Callable[[], float] = time.perf_counter,
    asked: Callable[[], bool] = lambda: False,
) -> Iterator[list[Output]]:
    """Collect what ends in an engine's steps. The last chunk, which may be empty, comes after the last step.

    `more` says whether anything is still to end, and `asked` after each step whether a chunk is to come now.
    """
    chunk: list[Output] = []
    since = 0.0
    for ended in steps:
        if ended:
            since = since if chunk else clock()
            chunk += ended
        if asked() or (chunk and more() and clock() - since >= CHUNK_SECONDS):
            yield chunk
            chunk = []
    yield chunk
