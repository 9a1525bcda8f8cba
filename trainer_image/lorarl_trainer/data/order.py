"""The order in which a run sees its rows: endless, reshuffled each epoch, the same on every machine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


class DataOrder:
    """An endless sequence of row indices that depends only on the seed and a position.

    Each epoch is a permutation of all rows, so every row is seen once per epoch. A resumed run needs only the position.
    """

    def __init__(self, rows: int, seed: int) -> None:
        """Order `rows` rows (at least 1) by `seed` (at least 0)."""
        if rows < 1 or seed < 0:
            raise ValueError(f"an order needs rows >= 1 and seed >= 0, got {rows} and {seed}")
        self._rows, self._seed = rows, seed

    def take(self, position: int, count: int) -> list[int]:
        """Return the row indices at `position` to `position + count - 1`. A batch may span epochs.

        Args:
            position: number of rows taken since the start of the run.
            count: number of rows to take.
        """
        if position < 0 or count < 0:
            raise ValueError(f"position and count must not be negative, got {position} and {count}")
        indices: list[int] = []
        while len(indices) < count:
            epoch, offset = divmod(position + len(indices), self._rows)
            end = offset + count - len(indices)
            indices.extend(_permutation(self._rows, self._seed, epoch)[offset:end].tolist())
        return indices


@lru_cache(maxsize=4)
def _permutation(rows: int, seed: int, epoch: int) -> NDArray[np.intp]:
    # NumPy guarantees Philox's raw stream forever, but not Generator.permutation (NEP 19). So sort by raw keys.
    keys = np.random.Philox(key=[seed, epoch]).random_raw(rows)
    return np.argsort(keys, kind="stable")
