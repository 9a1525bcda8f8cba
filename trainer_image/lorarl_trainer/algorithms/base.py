"""What an algorithm is to the loop: rewards in, advantages and a loss choice out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from lorarl_trainer.samples.types import LossChoice

Floats = npt.NDArray[np.float32]
Rewards = npt.NDArray[np.float64]


class Algorithm(Protocol):
    """One algorithm: how many completions it wants per prompt, what it makes of their rewards, and its loss."""

    group_size: int
    updates_per_step: int
    loss: LossChoice

    def advantages(self, rewards_P_G: Rewards) -> Floats:
        """Return the advantage of every completion, [P, G]. NaN rewards (not scored) get 0 and affect no other."""
