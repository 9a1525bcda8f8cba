"""Two threads' work on one GPU at a time: generation, which comes first, and training beside it.

Priorities alone do not divide a GPU. A kernel that has begun keeps its multiprocessors, and the products of an update
take milliseconds on all of them. A decode step has some 300 kernels of microseconds, one after another, and each would
wait for the product that began in the gap before it. So the background gets a part of the multiprocessors (a CUDA green
context), and never takes the others. Priorities decide where both want the same ones.

A GPU's queue takes about a thousand kernels. The thread that asks for more is held up, with the driver's locks, so that
another thread's work may be late. So the background's thread waits before there are that many (`pace`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.cuda.green_contexts import GreenContext

SHARE = 0.75
"""Of the multiprocessors, for the background. Reading memory at its full speed takes about a quarter of them."""
_MULTIPLE = 8
"""Multiprocessors come in groups of this size."""
_PARTS_AHEAD = 4
_HIGH = -1
"""A priority above that of the background's stream, 0."""


def come_first() -> torch.cuda.Stream:
    """Let this thread use a stream of high priority from now on, and capture its CUDA graphs on another; return it."""
    stream = torch.cuda.Stream(priority=_HIGH)
    stream.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(stream)
    # A graph's kernels have the priority of the stream that they were captured on.
    torch.cuda.graph.default_capture_stream = torch.cuda.Stream(priority=_HIGH)
    return stream


class CudaBackground:
    """A stream on a part of a GPU's multiprocessors. See `devices.base.Background`."""

    def __init__(self, device: torch.device, first: torch.cuda.Stream | None) -> None:
        """Take `SHARE` of the multiprocessors. `first` is the stream of the thread that comes first, if one does."""
        self._device, self._first = device, first
        count = torch.cuda.get_device_properties(device).multi_processor_count
        self._context = GreenContext.create(part_of(count, SHARE), device.index)
        self._own = self._context.Stream()
        self._stream: torch.cuda.Stream | None = None  # of the work that is being asked for
        self._parts: deque[torch.cuda.Event] = deque()  # of it that may not be done

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        """See `Background.entered`."""
        # Memory that was allocated for one stream is not used for another. So what is not in the background uses the
        # main thread's stream, of which the memory is there already.
        self._stream = stream = self._first if alone and self._first is not None else self._own
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(stream):
                yield
                _end_of(stream).synchronize()
        finally:
            self._stream = None
            self._parts.clear()

    def pace(self) -> None:
        """See `Background.pace`."""
        if self._stream is None:
            return
        self._parts.append(_end_of(self._stream))
        if len(self._parts) > _PARTS_AHEAD:
            self._parts.popleft().synchronize()


def _end_of(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Return an event after all that the stream has to do. Waiting for it sleeps, so that other threads can work."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


def part_of(count: int, share: float) -> int:
    """Return how many of `count` multiprocessors are about this share, in whole groups."""
    return max(int(count * share) // _MULTIPLE, 1) * _MULTIPLE
