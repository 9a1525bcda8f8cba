"""What a step asks of a critic: a value before each token, from which the tokens' advantages and returns follow.

Shape suffixes: S samples of a step, of which the scored ones take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lorarl_api.v1alpha1 import TrainerSpec
from lorarl_trainer.algorithms.ppo import explained_variance, generalised, normalised
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.arrays import Floats, Sums
from lorarl_trainer.samples.critic import CriticChoice, CriticUpdate
from lorarl_trainer.schedule import learning_rate


async def judged(
    workers: Workers, critic: CriticChoice, batch: StepBatch, penalties_S: Sequence[Sums] | None
) -> tuple[StepBatch, list[float | Floats], dict[str, float]]:
    """Return the batch with each token's value and return, the tokens' normalised advantages, and metrics.

    The values are those before the first update, also of later ones' samples. A completion without a reward takes no
    part.

        critic/value, critic/return: means over tokens.
        critic/explained_variance: see `ppo.explained_variance`; absent if all returns are equal.

    `penalties_S` is what each token loses of its reward. A completion's own reward belongs to its last token.
    """
    rewards_S = batch.rewards_P_G.reshape(-1)
    scored = np.flatnonzero(~np.isnan(rewards_S)).tolist()
    values = await workers.values([batch.samples_S[index] for index in scored])
    rewards = []
    for index in scored:
        of_tokens = np.zeros(batch.samples_S[index].trained_length)
        of_tokens[-1] = rewards_S[index]
        rewards.append(of_tokens if penalties_S is None else of_tokens - penalties_S[index])
    advantages, returns = generalised(rewards, values, critic)
    samples_S = list(batch.samples_S)
    advantages_S: list[float | Floats] = [0.0] * len(rewards_S)
    for index, of_sample, value, target in zip(scored, normalised(advantages), values, returns, strict=True):
        samples_S[index] = replace(samples_S[index], values=value, returns=target)
        advantages_S[index] = of_sample
    values_N, returns_N = np.concatenate(values), np.concatenate(returns)
    metrics = {"critic/value": float(values_N.mean()), "critic/return": float(returns_N.mean())}
    explained = explained_variance(values_N, returns_N)
    if explained is not None:
        metrics["critic/explained_variance"] = explained
    return replace(batch, samples_S=samples_S), advantages_S, metrics


def policy_learning_rate(critic: CriticChoice | None, trainer: TrainerSpec, step: int, last: int) -> float:
    """Return the policy's rate in a step. Its schedule begins when it does: after the critic's warm-up."""
    return learning_rate(trainer, step, last, skipped=critic.warmup_steps if critic else 0)


def critic_update(critic: CriticChoice | None, trainer: TrainerSpec, step: int, last: int) -> CriticUpdate | None:
    """Return how the critic learns in an update of a step; see `schedule.learning_rate`."""
    if critic is None:
        return None
    peak = critic.learning_rate or trainer.learning_rate
    rate = learning_rate(trainer.model_copy(update={"learning_rate": peak}), step, last)
    return CriticUpdate(rate, critic.clip_range, alone=critic.learns_alone(step))
