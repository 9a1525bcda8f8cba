"""The types of arrays that travel between rooms."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Sums = npt.NDArray[np.float64]
Rewards = Sums
"""NaN where a completion could not be scored."""
