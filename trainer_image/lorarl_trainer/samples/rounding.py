"""Which rewards are one number but for rounding: 0.7 + 0.2 + 0.1 is not 1.0, and 0.1 + 0.2 - 0.3 is not 0. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lorarl_trainer.samples.arrays import Sums

_RELATIVE, _ABSOLUTE = 1e-9, 1e-14
"""The difference that is rounding: a share of the larger number, or where terms around 1 cancel, this."""


def differ(one: Sums | float, other: Sums | float) -> npt.NDArray[np.bool_]:
    """Return whether rewards differ by more than rounding. NaN differs from nothing."""
    distance: Any = np.abs(np.subtract(one, other))
    return np.asarray(distance > _rounding(np.fmax(np.abs(one), np.abs(other))))


def reached(rewards: Sums, least: float) -> npt.NDArray[np.bool_]:
    """Return which rewards are at least `least` (`passReward`) but for rounding. NaN is not."""
    return np.asarray(rewards >= least - _rounding(abs(least)))


def _rounding(size: Any) -> Any:
    return np.fmax(_RELATIVE * size, _ABSOLUTE)
