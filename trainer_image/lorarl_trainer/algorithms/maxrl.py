"""Maximum likelihood reinforcement learning (MaxRL, arXiv:2602.02710): ascend log(probability of success).

Its gradient is the expected reward's over the probability of success, so prompts that rarely succeed weigh more. With
rewards of 0 and 1, the group's mean estimates that probability.
"""

from __future__ import annotations

import numpy as np

from lorarl_trainer.algorithms.groups import comparable, mean_and_std
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class MaxRl(PolicyGradient):
    """The baseline and the scale are the group's mean reward."""

    no_advantages = (
        ", because the mean reward of each is not above 0, and spec.algorithm.type maxrl divides by it. Give rewards "
        "from 0 on, such as 0 and 1, or choose another type, such as grpo"
    )

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return (r - mean) / mean within each group, [P, G]; 0 for a group whose mean is not positive.

        Rewards from 0 on have at least the mean of their highest one and zeros. A smaller mean, which rewards below 0
        may have, does not divide: it would have no bound.
        """
        mean_P_1, _ = mean_and_std(rewards_P_G)
        positive_P_1 = mean_P_1 > 0
        scored_P_1 = np.maximum(1, np.sum(~np.isnan(rewards_P_G), axis=1, keepdims=True))
        least_P_1 = np.fmax.reduce(rewards_P_G, axis=1)[:, np.newaxis] / scored_P_1
        scale_P_1 = np.where(positive_P_1, np.fmax(mean_P_1, least_P_1), 1.0)
        return comparable(rewards_P_G, np.where(positive_P_1, (rewards_P_G - mean_P_1) / scale_P_1, 0.0))
