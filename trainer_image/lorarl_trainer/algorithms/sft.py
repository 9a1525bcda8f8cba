"""Supervised fine-tuning: each row is its own group, and each answer as good as any other."""

from __future__ import annotations

import numpy as np

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_trainer.algorithms.base import RewardKl
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards
from lorarl_trainer.samples.critic import CriticChoice
from lorarl_trainer.samples.requests import LossChoice


class Sft:
    """One update per step, by cross entropy."""

    reward_kl: RewardKl | None = None
    critic: CriticChoice | None = None
    max_refills = 0
    no_advantages = ""

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Nothing of the manifest's algorithm applies to it."""
        self.group_size = 1
        self.updates_per_step = 1
        self.loss = LossChoice("cross_entropy")

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return zeros, [P, G]: cross entropy looks at no advantage."""
        return np.zeros(rewards_P_G.shape, np.float32)
