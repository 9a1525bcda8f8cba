"""Plain policy gradient (REINFORCE; R. J. Williams, 1992) with the step's mean reward as its baseline.

The probability ratio is not clipped. It is 1 in the first update of a step, and the importance weight in later ones.
"""

from __future__ import annotations

import math
from typing import Any

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.groups import comparable, mean_and_std, whole_step
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class Reinforce(PolicyGradient):
    """All completions of a step are compared with each other, whatever their prompt."""

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        return {"clip_range": math.inf}

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return r - (mean of the step), [P, G]."""
        rewards_1_S = whole_step(rewards_P_G)
        centered_1_S = comparable(rewards_1_S, rewards_1_S - mean_and_std(rewards_1_S)[0])
        return centered_1_S.reshape(rewards_P_G.shape)
