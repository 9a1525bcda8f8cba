"""The work queue: which jobs are to be looked at, and when."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 60.0
URGENT_OF = 4
"""Of so many keys one is not urgent, where both kinds wait."""


class WorkQueue[Key: Hashable]:
    """Keys, each at most once in the queue, and never in the hands of two workers.

    A key that is added while a worker has it comes again when that worker is done. A key that fails comes again after its own
    back-off, which doubles from 0.5 s to 60 s: a poisoned job costs a look a minute and holds up nobody. Urgent keys overtake the others,
    but not for ever: new jobs begin while thousands of others report.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds and never goes back."""
        self._clock = clock
        self._ready: deque[Key] = deque()
        self._urgent: deque[Key] = deque()
        self._taken = itertools.count()
        self._waiting_or_dirty: set[Key] = set()
        self._in_hand: set[Key] = set()
        self._delayed: list[tuple[float, int, Key]] = []
        self._due: dict[Key, float] = {}
        self._order = itertools.count()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """How many keys are ready, not counting those in hand or delayed."""
        return len(self._ready) + len(self._urgent)

    def add(self, key: Key, *, urgent: bool = False) -> None:
        """Have a key looked at as soon as a worker is free."""
        if key in self._waiting_or_dirty:
            return
        self._waiting_or_dirty.add(key)
        if key not in self._in_hand:
            (self._urgent if urgent else self._ready).append(key)
            self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have a key looked at in so many seconds; the earliest such wish holds."""
        due = self._clock() + seconds
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._delayed, (due, next(self._order), key))
        self._changed.set()

    async def get(self) -> Key:
        """The next key; `done` must follow."""
        while True:
            self._release_due()
            if len(self):
                key = self._next_lane().popleft()
                self._waiting_or_dirty.discard(key)
                self._in_hand.add(key)
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
        """A worker has finished with a key."""
        self._in_hand.discard(key)
        if key in self._waiting_or_dirty:
            self._ready.append(key)
            self._changed.set()

    def failed(self, key: Key, at_least: float = 0.0) -> float:
        """A worker failed on a key: it comes again after its back-off, in seconds (returned), or `at_least` so many."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = min(LONGEST_BACKOFF_SECONDS, max(at_least, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 10)))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: Key) -> None:
        """A worker did all there was to do on a key: its back-off starts anew."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """The key's job is gone."""
        self._failures.pop(key, None)
        self._due.pop(key, None)

    def _next_lane(self) -> deque[Key]:
        if self._urgent and self._ready:
            return self._ready if next(self._taken) % URGENT_OF == 0 else self._urgent
        return self._urgent or self._ready

    def _release_due(self) -> None:
        now = self._clock()
        while self._delayed and self._delayed[0][0] <= now:
            due, _, key = heapq.heappop(self._delayed)
            if self._due.get(key) == due:  # Else an earlier wish took its place, or the job is gone.
                del self._due[key]
                self.add(key)
