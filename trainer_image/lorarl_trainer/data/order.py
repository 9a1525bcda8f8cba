"""The order in which a run sees its rows: endless, reshuffled each epoch, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lorarl_trainer.schedule import seed_of


class DataOrder:
    """An endless sequence of row indices that depends only on the seed and a position.

    Each epoch is a permutation of all rows, so every row is seen once per epoch. A resumed run needs only the position.
    """

    def __init__(self, rows: int, seed: int) -> None:
        """Order `rows` rows (at least 1) by `seed` (at least 0)."""
        if rows < 1 or seed < 0:
            raise ValueError(f"an order needs rows >= 1 and seed >= 0, got {rows} and {seed}")
        self._rows, self._seed = rows, seed
        self._epoch = -1
        self._permutation: NDArray[np.intp] = np.empty(0, np.intp)

    def take(self, position: int, count: int) -> list[int]:
        """Return the row indices at `position` to `position + count - 1`. A batch may span epochs.

        `position`: number of rows taken since the start of the run.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position and count must not be negative, got {position} and {count}")
        indices: list[int] = []
        while len(indices) < count:
            epoch, offset = divmod(position + len(indices), self._rows)
            end = offset + count - len(indices)
            indices.extend(self._of_epoch(epoch)[offset:end].tolist())
        return indices

    def _of_epoch(self, epoch: int) -> NDArray[np.intp]:
        if epoch != self._epoch:
            self._epoch, self._permutation = epoch, _permutation(self._rows, self._seed, epoch)
        return self._permutation


@dataclass(frozen=True, slots=True)
class Part:
    """One of several sources of rows: how many it has (at least 1), and its weight among them (more than 0)."""

    rows: int
    weight: float


class MixedOrder:
    """An endless sequence of row indices of several sources, each in its own order, in proportion to their weights.

    The next row is of the source that is furthest behind its share, so any stretch of rows has the shares up to one
    row. This, too, depends only on the seed and a position. Rows are numbered source by source.
    """

    def __init__(self, parts: Sequence[Part], seed: int) -> None:
        """Order the rows of `parts` by `seed` (at least 0)."""
        total = sum(part.weight for part in parts)
        self._shares = [part.weight / total for part in parts]
        self._orders = [DataOrder(part.rows, seed_of(seed, "mixture", index)) for index, part in enumerate(parts)]
        self._firsts = [sum(part.rows for part in parts[:index]) for index in range(len(parts))]
        self._position, self._taken = 0, [0] * len(parts)

    def take(self, position: int, count: int) -> list[int]:
        """Return the row indices at `position` to `position + count - 1`; see `DataOrder.take`."""
        if position < 0 or count < 0:
            raise ValueError(f"position and count must not be negative, got {position} and {count}")
        if position < self._position:
            self._position, self._taken = 0, [0] * len(self._taken)
        while self._position < position:
            self._draw()
        return [self._firsts[part] + self._orders[part].take(number, 1)[0] for part, number in self._draws(count)]

    def _draws(self, count: int) -> Iterator[tuple[int, int]]:
        return (self._draw() for _ in range(count))

    def _draw(self) -> tuple[int, int]:
        """Return the source of the next row, and how many of its rows were taken before."""
        self._position += 1
        behind = [share * self._position - taken for share, taken in zip(self._shares, self._taken, strict=True)]
        part = behind.index(max(behind))
        self._taken[part] += 1
        return part, self._taken[part] - 1


def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.intp]:
    # NumPy guarantees Philox's raw stream forever, but not Generator.permutation (NEP 19). So sort by raw keys.
    keys = np.random.Philox(key=[seed, epoch]).random_raw(rows)
    return np.argsort(keys, kind="stable")
