"""Group-relative policy optimisation (GRPO, arXiv:2402.03300): a completion is compared with its own group."""

from __future__ import annotations

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.groups import EPSILON, comparable, mean_and_std
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class Grpo(PolicyGradient):
    """The baseline is the group's mean reward, the scale its standard deviation; there is no critic."""

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Take the scale besides what all take."""
        super().__init__(spec, max_response_tokens)
        self.scales_by_std = spec.grpo is None or spec.grpo.scale_by_std

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return (r - mean) / (std + 1e-6) within each group, [P, G]; with `scaleByStd` false without the divisor.

        The result is 0 where nothing can be compared, or where all rewards are equal.
        """
        mean_P_1, deviation_P_1 = mean_and_std(rewards_P_G)
        centered_P_G = rewards_P_G - mean_P_1
        return comparable(rewards_P_G, centered_P_G / (deviation_P_1 + EPSILON) if self.scales_by_std else centered_P_G)
