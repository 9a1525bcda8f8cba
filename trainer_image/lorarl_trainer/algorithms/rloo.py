"""REINFORCE leave-one-out (RLOO, arXiv:2402.14740; W. Kool et al., "Buy 4 REINFORCE samples, get a baseline for
free!", 2019): the baseline of a completion is the mean reward of the others, which it does not influence.
"""

from __future__ import annotations

import numpy as np

from lorarl_trainer.algorithms.groups import comparable, mean_and_std
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class Rloo(PolicyGradient):
    """The baseline is the mean reward of the group's other completions."""

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return r - (mean of the others) = G / (G - 1) (r - mean) within each group, [P, G]."""
        scored_P_1 = (~np.isnan(rewards_P_G)).sum(axis=1, keepdims=True)
        others_P_1 = np.maximum(scored_P_1 - 1, 1)
        return comparable(rewards_P_G, scored_P_1 / others_P_1 * (rewards_P_G - mean_and_std(rewards_P_G)[0]))
