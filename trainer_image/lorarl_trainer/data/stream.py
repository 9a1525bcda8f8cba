"""A run's rows in the order that its seed determines, and the run's position in them."""

from __future__ import annotations

from collections.abc import Sequence

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import DataOrder, MixedOrder, Part


class RowStream:
    """Endless rows. A resumed run needs only the position."""

    def __init__(
        self, rows: Sequence[EncodedRow], seed: int, position: int = 0, parts: Sequence[Part] | None = None
    ) -> None:
        """Order rows.

        Args:
            rows: at least one.
            seed: of the run.
            position: the number of rows taken so far.
            parts: the sources that the rows come from, in this order; None for one.
        """
        self._rows, self.position = rows, position
        mixed = parts is not None and len(parts) > 1
        self._order = MixedOrder(parts, seed) if parts and mixed else DataOrder(len(rows), seed)

    def first(self, count: int) -> Sequence[EncodedRow]:
        """Return the first `count` rows of the data, or all, without taking them."""
        return self._rows[:count]

    def next(self, count: int) -> list[EncodedRow]:
        """Take the next `count` rows."""
        indices = self._order.take(self.position, count)
        self.position += count
        return [self._rows[index] for index in indices]
