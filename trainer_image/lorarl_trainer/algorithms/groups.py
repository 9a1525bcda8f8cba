"""What an algorithm that compares completions with their group can learn from the group's rewards."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lorarl_trainer.algorithms.base import Rewards


def with_signal(rewards_P_G: Rewards) -> npt.NDArray[np.bool_]:
    """Return which groups have completions with different rewards, [P]. The others train nothing."""
    highest_P = np.fmax.reduce(rewards_P_G, axis=1)  # ignores NaN, which is a completion that was not scored
    lowest_P = np.fmin.reduce(rewards_P_G, axis=1)
    different_P: npt.NDArray[np.bool_] = highest_P > lowest_P
    return different_P
