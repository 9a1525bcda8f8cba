"""REINFORCE++ (arXiv:2501.03262): advantages are normalised over the whole step instead of each group.

So a group's scale does not depend on its few completions alone. Without a baseline, the prompts compete with each
other, and a group may have a single completion. With a baseline, the group's mean is subtracted first.
"""

from __future__ import annotations

import numpy as np

from lorarl_trainer.algorithms.groups import EPSILON, comparable, mean_and_std, whole_step
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class ReinforcePlusPlus(PolicyGradient):
    """The baseline and the scale are the step's mean and standard deviation."""

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return (r - mean) / (std + 1e-6) over the step, [P, G]."""
        return _normalised(rewards_P_G)


class ReinforcePlusPlusBaseline(PolicyGradient):
    """The baseline is the group's mean, the scale the standard deviation of what remains over the step."""

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return a / (std of all a + 1e-6) of a = r - (mean of the group), [P, G]."""
        centered_P_G = rewards_P_G - mean_and_std(rewards_P_G)[0]
        return comparable(rewards_P_G, _normalised(centered_P_G).astype(np.float64))


def _normalised(rewards_P_G: Rewards) -> Floats:
    rewards_1_S = whole_step(rewards_P_G)
    mean_1_1, deviation_1_1 = mean_and_std(rewards_1_S)
    normalised_1_S = comparable(rewards_1_S, (rewards_1_S - mean_1_1) / (deviation_1_1 + EPSILON))
    return normalised_1_S.reshape(rewards_P_G.shape)
