"""What an algorithm is to the loop: rewards in, advantages and a loss choice out."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from lorarl_trainer.samples.types import LossChoice

Floats = npt.NDArray[np.float32]
Rewards = npt.NDArray[np.float64]


class Algorithm(Protocol):
    """One algorithm: how many completions it wants per prompt, what it makes of their rewards, and its loss.

    Attributes:
        group_size: completions of each prompt, G.
        updates_per_step: on equal shares of the prompts.
        loss: of each update.
        by_group: the advantages of a group follow from its own rewards, so they are known when it has ended.
    """

    group_size: int
    updates_per_step: int
    loss: LossChoice
    by_group: bool

    def advantages(self, rewards_P_G: Rewards) -> Floats:
        """Return the advantage of every completion, [P, G]. NaN rewards (not scored) get 0 and affect no other."""
