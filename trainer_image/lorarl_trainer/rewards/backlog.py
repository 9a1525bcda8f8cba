"""Samples on their way to the scoring processes: parts of a step come at any time, and each gets its outcomes as a whole."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from lorarl_trainer.rewards.scores import Outcome, ToScore


class Batch:
    """Samples that came together.

    Attributes:
        scored: their outcomes, in their order.
    """

    def __init__(self, samples: Sequence[ToScore]) -> None:
        """Wait for the outcomes of `samples`, of which there is one at least."""
        self.samples = samples
        self.outcomes: dict[int, Outcome] = {}
        self.scored: Future[list[Outcome]] = Future()
        self.scored.set_running_or_notify_cancel()  # whoever waits may leave: it is scored all the same


@dataclass(slots=True, eq=False)
class Item:
    """One sample.

    Attributes:
        index: its place in `part`.
        alone: to be scored by a process that does nothing else meanwhile.
        deadline: when its process is ended, by time.monotonic(); known while it is being scored.
    """

    batch: Batch
    index: int
    alone: bool = False
    deadline: float = 0.0

    @property
    def sample(self) -> ToScore:
        """What is scored."""
        return self.batch.samples[self.index]


class Waiting:
    """The samples that no process has yet. All threads share it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._alone: deque[Item] = deque()
        self._batches: set[Batch] = set()
        self._error: BaseException | None = None

    def add(self, batch: Batch) -> None:
        """Let a part wait behind those that came before.

        Raises:
            the error that `fail` was given.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._batches.add(batch)
            self._items.extend(Item(batch, index) for index in range(len(batch.samples)))

    def take(self, room: int, shares: int, *, idle: bool) -> list[Item]:
        """Take samples for a process that has room for so many: one of `shares` equal shares at most, so that all have something to do."""
        with self._lock:
            if idle and self._alone:
                return [self._alone.popleft()]
            return [self._items.popleft() for _ in range(min(room, -(-len(self._items) // shares)))]

    def put_back(self, items: Sequence[Item], *, alone: bool) -> None:
        """Let samples be taken again, before all others; `alone`: each by a process that does nothing else meanwhile."""
        with self._lock:
            for item in reversed(items):
                item.alone = alone
                (self._alone if alone else self._items).appendleft(item)

    def settle(self, item: Item, outcome: Outcome) -> None:
        """Note a sample's outcome; with the last one its part is done."""
        batch = item.batch
        with self._lock:
            batch.outcomes[item.index] = outcome
            if len(batch.outcomes) < len(batch.samples) or batch not in self._batches:
                return
            self._batches.remove(batch)
        batch.scored.set_result([batch.outcomes[index] for index in range(len(batch.samples))])

    def fail(self, error: BaseException) -> None:
        """Let all parts end in this error, also those that are still to come."""
        with self._lock:
            self._error = self._error or error
            batches, self._batches = self._batches, set()
        for batch in batches:
            batch.scored.set_exception(self._error)
