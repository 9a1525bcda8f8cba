"""A run's rows in the order that its seed determines, and the run's position in them."""

from __future__ import annotations

from collections.abc import Sequence

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import DataOrder


class RowStream:
    """Endless rows. A resumed run needs only the position."""

    def __init__(self, rows: Sequence[EncodedRow], seed: int, position: int = 0) -> None:
        """Start at `position`: the number of rows taken so far."""
        self._rows, self._order, self.position = rows, DataOrder(len(rows), seed), position

    def first(self, count: int) -> Sequence[EncodedRow]:
        """Return the first `count` rows of the data, or all, without taking them."""
        return self._rows[:count]

    def next(self, count: int) -> list[EncodedRow]:
        """Take the next `count` rows."""
        indices = self._order.take(self.position, count)
        self.position += count
        return [self._rows[index] for index in indices]
