"""The work queue: which jobs to reconcile, and when."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0
NORMAL_EVERY = 4
"""If urgent and normal keys wait, every fourth key is a normal one."""


class WorkQueue[Key: Hashable]:
    """Keys. Each is in the queue at most once, and at most one worker processes it.

    A key that is added while a worker processes it returns when that worker is done. A key that fails returns after its
    own back-off, which doubles from 0.5 s to 60 s: a broken job costs one reconciliation per minute and delays no other
    job. Urgent keys overtake the others, but not always: new jobs start while thousands of others report.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._ready: deque[Key] = deque()
        self._urgent: deque[Key] = deque()
        self._served = itertools.count()
        self._dirty: set[Key] = set()
        self._processing: set[Key] = set()
        self._delayed: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._order = itertools.count()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """How many keys are ready. Keys that are being processed or delayed do not count."""
        return len(self._ready) + len(self._urgent)

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Queue a key for the next free worker."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            (self._urgent if urgent else self._ready).append(key)
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue a key after a delay in seconds. The earliest of several requests counts."""
        due = self._clock() + seconds
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._order), key))
        self._changed.set()

    async def get(self) -> Key:
        """Wait for the next key. The worker must call `done` afterwards."""
        while True:
            self._release_due()
            if len(self):
                key = self._next_lane().popleft()
                self._dirty.discard(key)
                self._processing.add(key)
                if len(self):
                    self._changed.set()  # One waiter wakes the next.
                return key
            self._changed.clear()
            wait = self._delayed[0][0] - self._clock() if self._delayed else None
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """A worker has processed a key."""
        self._processing.discard(key)
        if key in self._dirty:
            self._ready.append(key)
            self._changed.set()

    def add_rate_limited(self, key: Key, at_least: float = 0.0) -> float:
        """Queue a key that failed again after its back-off, but not before `at_least`. Return the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LONGEST_BACKOFF_SECONDS, max(at_least, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 10)))
        self.add_after(key, delay)
        return delay

    def forget(self, key: Key) -> None:
        """Reset the back-off of a key that succeeded."""
        self._failures.pop(key, None)

    def remove(self, key: Key) -> None:
        """Drop the back-off and the delayed requests of a key whose job is gone."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    def _next_lane(self) -> deque[Key]:
        if self._urgent and self._ready:
            return self._ready if next(self._served) % NORMAL_EVERY == 0 else self._urgent
        return self._urgent or self._ready

    def _release_due(self) -> None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:  # Otherwise an earlier request replaced it, or the job is gone.
                del self._due[key]
                self.add(key)
