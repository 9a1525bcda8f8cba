"""What an algorithm is to the loop: rewards in, advantages and a loss choice out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lorarl_api.v1alpha1 import AlgorithmSpec

Floats = npt.NDArray[np.float32]
Rewards = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LossChoice:
    """Which per-token loss the trainer computes, and its constants.

    Attributes:
        kind: policy_gradient: the clipped surrogate of PPO (arXiv:1707.06347) on the given advantages. cross_entropy: -log p.
        clip_range: the probability ratio is clipped to 1 - clip_range .. 1 + clip_range.
        kl_coefficient: weight of the k3 estimate of KL(policy || base) added to each token's loss; 0 for none.
    """

    kind: Literal["policy_gradient", "cross_entropy"]
    clip_range: float = 0.0
    kl_coefficient: float = 0.0


class Algorithm(Protocol):
    """One algorithm: how many completions it wants a prompt, what it makes of their rewards, and its loss."""

    group_size: int
    updates_per_step: int
    loss: LossChoice

    def advantages(self, rewards_P_G: Rewards) -> Floats:
        """Return the advantage of every completion, shape [P, G]; NaN rewards (not scored) get 0 and touch no other."""


def get_algorithm(spec: AlgorithmSpec) -> Algorithm | None:
    """Return the algorithm of a reinforcement learning job; None for sft, which has no rollouts."""
    if spec.type == "sft":
        return None
    from lorarl_trainer.algorithms.grpo import Grpo

    return Grpo(spec)
