"""What an algorithm is to the loop: rewards in, advantages and a loss choice out.

Shape suffixes: P prompts of a step, G completions of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from lorarl_trainer.samples.arrays import Floats, Ints, Rewards
from lorarl_trainer.samples.critic import CriticChoice
from lorarl_trainer.samples.requests import LossChoice


@dataclass(frozen=True)
class RewardKl:
    """A KL penalty on a completion's reward: the weight, and how the divergence is estimated."""

    coefficient: float
    estimator: Literal["k1", "k2", "k3"]


class Algorithm(Protocol):
    """One algorithm: how many completions it wants per prompt, what it makes of their rewards, and its loss.

    Attributes:
        group_size: completions of each prompt, G.
        updates_per_step: on equal shares of the prompts.
        reward_kl: the KL penalty that is subtracted from rewards before `advantages` takes them; None for none.
        critic: what expects a return before each token; None for none.
        max_refills: how many times per step groups without signal may be replaced by those of further prompts.
        no_advantages: why a group with different rewards may have no advantages, and the fix, for the end of a
            sentence; empty where that does not happen.
    """

    group_size: int
    updates_per_step: int
    loss: LossChoice
    reward_kl: RewardKl | None
    critic: CriticChoice | None
    max_refills: int
    no_advantages: str

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return the advantage of every completion, [P, G]. NaN rewards (not scored) get 0 and affect no other.

        `lengths_P_G` are the completions' numbers of tokens.
        """
