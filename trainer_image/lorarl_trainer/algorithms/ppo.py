"""Proximal policy optimisation (PPO, arXiv:1707.06347) with a critic and generalised advantages (arXiv:1506.02438).

A critic expects a return before each token, so a token is compared with what was expected and not with a group: one
completion per prompt is enough. The surrogate is the clipped one of the others. The critic's loss is in
`losses/value.py`.
Shape suffixes: S samples, T their trained tokens, padded at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lorarl_api.v1alpha1 import AlgorithmSpec
from lorarl_api.v1alpha1.algorithm_options import PpoSpec
from lorarl_trainer.algorithms.groups import EPSILON
from lorarl_trainer.algorithms.policy_gradient import PolicyGradient
from lorarl_trainer.samples.arrays import Floats, Ints, Rewards
from lorarl_trainer.samples.critic import CriticChoice


class Ppo(PolicyGradient):
    """The baseline of each token is the critic's value before it."""

    def __init__(self, spec: AlgorithmSpec, max_response_tokens: int) -> None:
        """Take the critic's fields besides what all take."""
        super().__init__(spec, max_response_tokens)
        options = spec.ppo or PpoSpec()
        self.critic = CriticChoice(
            discount=options.gamma,
            trace=options.gae_lambda,
            clip_range=options.value_clip_range,
            learning_rate=options.critic_learning_rate,
            warmup_steps=options.critic_warmup_steps,
        )

    def advantages(self, rewards_P_G: Rewards, lengths_P_G: Ints) -> Floats:
        """Return the rewards, [P, G]: each belongs to its completion's last token, and `generalised` spreads it."""
        return np.nan_to_num(rewards_P_G).astype(np.float32)


def generalised(
    rewards_S: Sequence[np.ndarray], values_S: Sequence[np.ndarray], critic: CriticChoice
) -> tuple[list[Floats], list[Floats]]:
    """Return the advantages and the returns of each sample's tokens (GAE, arXiv:1506.02438, equation 16).

        delta_t = r_t + gamma V_(t+1) - V_t
        A_t     = delta_t + gamma lambda A_(t+1)
        R_t     = A_t + V_t

    A completion ends with its last token, whatever the reason: beyond it, V and A are 0.

    Args:
        rewards_S: the reward of each token.
        values_S: what was expected before each token.
        critic: gamma and lambda.
    """
    lengths_S = np.array([len(values) for values in values_S])
    rewards_S_T, values_S_T = (_padded(of, lengths_S) for of in (rewards_S, values_S))
    after_S_T = np.concatenate([values_S_T[:, 1:], np.zeros((len(lengths_S), 1))], axis=1)
    deltas_S_T = rewards_S_T + critic.discount * after_S_T - values_S_T
    advantages_S_T, later_S = np.zeros_like(deltas_S_T), np.zeros(len(lengths_S))
    for token in reversed(range(deltas_S_T.shape[1])):
        later_S = deltas_S_T[:, token] + critic.discount * critic.trace * later_S
        advantages_S_T[:, token] = later_S
    returns_S_T = advantages_S_T + values_S_T
    return _rows(advantages_S_T, lengths_S), _rows(returns_S_T, lengths_S)


def normalised(advantages_S: Sequence[Floats]) -> list[Floats]:
    """Return (A - mean) / (std + 1e-6) over all tokens of a step; zeros if there is nothing to compare."""
    if not advantages_S:
        return []
    all_N = np.concatenate(advantages_S).astype(np.float64)
    mean, deviation = all_N.mean(), all_N.std()
    return [((one - mean) / (deviation + EPSILON)).astype(np.float32) for one in advantages_S]


def explained_variance(values_N: np.ndarray, returns_N: np.ndarray) -> float | None:
    """Return which share of the returns' variance the values explain: 1 - Var(R - V) / Var(R); None if R is constant.

    1 is a perfect critic, 0 is one that says the same of every token, and one below 0 is worse than that.
    """
    variance = float(np.var(returns_N, dtype=np.float64))
    return 1 - float(np.var(returns_N - values_N, dtype=np.float64)) / variance if variance > 0 else None


def _padded(arrays_S: Sequence[np.ndarray], lengths_S: Ints) -> np.ndarray:
    padded_S_T = np.zeros((len(lengths_S), int(lengths_S.max(initial=0))))
    for row, array in zip(padded_S_T, arrays_S, strict=True):
        row[: len(array)] = array
    return padded_S_T


def _rows(padded_S_T: np.ndarray, lengths_S: Ints) -> list[Floats]:
    return [row[:length].astype(np.float32) for row, length in zip(padded_S_T, lengths_S, strict=True)]
