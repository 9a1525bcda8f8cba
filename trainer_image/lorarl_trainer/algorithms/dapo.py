"""DAPO (arXiv:2503.14476): GRPO with clip-higher, token mean, dynamic sampling, and a penalty on overlong ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import DapoSpec
from lorarl_trainer.algorithms.groups import comparable
from lorarl_trainer.algorithms.grpo import Grpo
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards


class Dapo(Grpo):
    """GRPO's advantages of rewards from which the penalty is subtracted."""

    no_advantages = (
        ", because their rewards are equal once the penalty for length is subtracted. Lower "
        "spec.algorithm.dapo.overlongPenalty, or raise spec.rollout.maxResponseTokens"
    )

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Take the penalty and the refills besides GRPO's fields."""
        super().__init__(spec, max_response_tokens)
        options = spec.dapo or DapoSpec()
        self.max_refills = options.max_refills
        self._limit, self._buffer = max_response_tokens, options.overlong_buffer_tokens
        self._penalty = options.overlong_penalty

    def loss_options(self, spec: AlgorithmSpec) -> dict[str, Any]:
        """Clip further away above 1 than below, which keeps unlikely tokens in the game (clip-higher)."""
        return {"clip_range_high": (spec.dapo or DapoSpec()).clip_range_high}

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return GRPO's advantages of the rewards less the penalty, [P, G]; 0 for groups of equal rewards.

        Those are what dynamic sampling replaces. The penalty alone, divided by its own standard deviation, would teach
        them nothing but to be short, as strongly as a reward.
        """
        if self._buffer is None:
            return super().advantages(rewards_P_G, lengths_P_G)
        share_P_G = overlong_share(lengths_P_G, self._limit, self._buffer)
        penalised_P_G = super().advantages(rewards_P_G - self._penalty * share_P_G, lengths_P_G)
        return comparable(rewards_P_G, penalised_P_G.astype(np.float64))


def overlong_share(lengths_P_G: Ints, limit: int, buffer: int) -> Rewards:
    """Return how much of the penalty each length has, 0 to 1: it grows over the last `buffer` tokens of the limit.

    Equation 13 of the paper, with the opposite sign.
    """
    return np.clip((lengths_P_G - (limit - buffer)) / buffer, 0.0, 1.0)
