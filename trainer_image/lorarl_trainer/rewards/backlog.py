"""Samples on their way to the scoring processes. Batches come at any time; each gets all of its outcomes at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from lorarl_trainer.rewards.scores import Outcome, ToScore


class Batch:
    """Samples that were given together.

    Attributes:
        scored: future of their outcomes, in the order of the samples.
    """

    def __init__(self, samples: Sequence[ToScore]) -> None:
        """Wait for the outcomes of `samples`. There is at least one sample."""
        self.samples = samples
        self.outcomes: dict[int, Outcome] = {}
        self.scored: Future[list[Outcome]] = Future()
        self.scored.set_running_or_notify_cancel()  # scoring continues even if the caller stops waiting


@dataclass(slots=True, eq=False)
class Item:
    """One sample.

    Attributes:
        index: its index in `batch`.
        alone: whether its process may score nothing else at the same time.
        deadline: when its process will be ended, by time.monotonic(). Set while it is being scored.
    """

    batch: Batch
    index: int
    alone: bool = False
    deadline: float = 0.0

    @property
    def sample(self) -> ToScore:
        """The sample itself."""
        return self.batch.samples[self.index]


class Backlog:
    """The samples that no process has yet. All threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._alone: deque[Item] = deque()
        self._batches: set[Batch] = set()
        self._error: BaseException | None = None

    def add(self, batch: Batch) -> None:
        """Queue a batch behind all earlier ones.

        Raises:
            BaseException: the error that was given to `fail`.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._batches.add(batch)
            self._items.extend(Item(batch, index) for index in range(len(batch.samples)))

    def take(self, room: int, shares: int, *, idle: bool) -> list[Item]:
        """Take samples for one process.

        `shares`: take at most one of this many equal shares, so that every process has something to do. `idle`: whether
        the process is scoring nothing now; only then may it take a sample that must be alone.
        """
        with self._lock:
            if idle and self._alone:
                return [self._alone.popleft()]
            return [self._items.popleft() for _ in range(min(room, -(-len(self._items) // shares)))]

    def put_back(self, items: Sequence[Item], *, alone: bool) -> None:
        """Return samples to the front of the queue.

        `alone`: each needs a process that scores nothing else meanwhile.
        """
        with self._lock:
            for item in reversed(items):
                item.alone = alone
                (self._alone if alone else self._items).appendleft(item)

    def settle(self, item: Item, outcome: Outcome) -> None:
        """Record a sample's outcome. The last one completes its batch."""
        batch = item.batch
        with self._lock:
            batch.outcomes[item.index] = outcome
            if len(batch.outcomes) < len(batch.samples) or batch not in self._batches:
                return
            self._batches.remove(batch)
        batch.scored.set_result([batch.outcomes[index] for index in range(len(batch.samples))])

    def fail(self, error: BaseException) -> None:
        """End all batches with this error, including future ones."""
        with self._lock:
            self._error = self._error or error
            batches, self._batches = self._batches, set()
        for batch in batches:
            batch.scored.set_exception(self._error)
