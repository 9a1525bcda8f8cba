"""Dr. GRPO, "GRPO done right" (arXiv:2503.20783): no division by the standard deviation, nor by the response's length.

The loss of a completion is its tokens' sum over a constant, `rollout.maxResponseTokens`. So a long wrong answer is
punished by each of its tokens, as a short one is.
"""

from __future__ import annotations

from lorarl_trainer.algorithms.groups import comparable, mean_and_std
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class DrGrpo(PolicyGradient):
    """The baseline is the group's mean reward. The contract gives it the aggregation `constant`."""

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return r - mean within each group, [P, G]; 0 where nothing can be compared."""
        return comparable(rewards_P_G, rewards_P_G - mean_and_std(rewards_P_G)[0])
