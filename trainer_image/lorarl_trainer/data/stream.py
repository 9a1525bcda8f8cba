"""A run's rows in the order that its seed determines, and the run's position in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lorarl_trainer.data.curriculum import Curriculum
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.order import DataOrder, MixedOrder, Part


class RowStream:
    """Endless rows. A resumed run needs only the position, and with a curriculum its state."""

    def __init__(
        self,
        rows: Sequence[EncodedRow],
        seed: int,
        position: int = 0,
        parts: Sequence[Part] | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        """Order rows.

        Args:
            rows: at least one.
            seed: of the run.
            position: the number of turns so far: of rows that were taken, or passed over by the curriculum.
            parts: the sources that the rows come from, in this order; None for one.
            curriculum: decides which rows take their turn; None if all do.
        """
        self._rows, self.position = rows, position
        mixed = parts is not None and len(parts) > 1
        self._order = MixedOrder(parts, seed) if parts and mixed else DataOrder(len(rows), seed)
        self._curriculum = curriculum
        self._drawn: list[int] = []
        self._turns = 0

    def first(self, count: int) -> Sequence[EncodedRow]:
        """Return the first `count` rows of the data, or all, without taking them."""
        return self._rows[:count]

    def at(self, position: int) -> EncodedRow:
        """Return the row that has its turn at a position, without taking it."""
        (index,) = self._order.take(position, 1)
        return self._rows[index]

    def next(self, count: int) -> list[EncodedRow]:
        """Take the next `count` rows."""
        if self._curriculum is None:
            indices = self._order.take(self.position, count)
            self.position += count
            return [self._rows[index] for index in indices]
        before, indices = self.position, []
        while len(indices) < count:
            (row,) = self._order.take(self.position, 1)
            if self._curriculum.takes(row, self.position):
                indices.append(row)
            self.position += 1
        self._drawn += indices
        self._turns += self.position - before
        return [self._rows[index] for index in indices]

    def record(self, rewards_P_G: npt.NDArray[np.float64]) -> dict[str, float]:
        """Tell the curriculum, if there is one, the rewards of all rows taken since the last call; return metrics.

        curriculum/skipped_share: share of the turns since then that were passed over, 0 to 1. Others: see
        `Curriculum.metrics`.
        """
        if self._curriculum is None:
            return {}
        self._curriculum.record(self._drawn, rewards_P_G)
        skipped = 1 - len(self._drawn) / self._turns
        self._drawn, self._turns = [], 0
        return {"curriculum/skipped_share": skipped, **self._curriculum.metrics()}
