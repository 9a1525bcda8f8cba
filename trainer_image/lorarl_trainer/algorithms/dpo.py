"""Direct preference optimisation (DPO, arXiv:2305.18290): the chosen answer of a pair is to gain on the rejected one.

There is no reward model: the policy's own log-probabilities, compared with a reference's, are an implicit reward.
The loss is in `losses/preference.py`.
"""

from __future__ import annotations

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import DpoSpec
from lorarl_trainer.algorithms.base import RewardKl
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards
from lorarl_trainer.samples.critic import CriticChoice
from lorarl_trainer.samples.requests import LossChoice


class Dpo:
    """One update per step. A group is a pair: the chosen answer with reward 1, then the rejected one with 0."""

    reward_kl: RewardKl | None = None
    critic: CriticChoice | None = None
    max_refills = 0
    no_advantages = ""

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Take the options of the group `dpo`."""
        options = spec.dpo or DpoSpec()
        self.group_size = 2
        self.updates_per_step = 1
        self.loss = LossChoice("preference", beta=options.beta, label_smoothing=options.label_smoothing)

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return 1 for the chosen answers and -1 for the rejected ones, [P, G]: the signs of a pair's margin."""
        return (2 * rewards_P_G - 1).astype("float32")
