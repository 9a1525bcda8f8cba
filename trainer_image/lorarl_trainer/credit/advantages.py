"""The advantages of a step's samples, from rewards, a critic or a teacher.

Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.algorithms.distillation import token_advantages
from lorarl_trainer.credit.critic import judged
from lorarl_trainer.credit.reference import kl_penalties, rewards_less_kl
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.arrays import Floats, Rewards
from lorarl_trainer.samples.sample import Sample


async def with_advantages(
    workers: Workers, algorithm: Algorithm, batch: StepBatch
) -> tuple[StepBatch, Sequence[float | Floats], dict[str, float]]:
    """Return the batch, the advantages of each sample, one for all its tokens or one of each, [S], and metrics.

    With a critic, the batch has what the critic learns from.
    """
    if algorithm.critic is None:
        rewards_P_G, metrics = await rewards_less_kl(workers, algorithm, batch)
        return batch, advantages_of(algorithm, rewards_P_G, batch), metrics
    penalties_S, metrics = await kl_penalties(workers, algorithm, batch)
    batch, advantages_S, found = await judged(workers, algorithm.critic, batch, penalties_S)
    return batch, advantages_S, metrics | found


def advantages_of(algorithm: Algorithm, rewards_P_G: Rewards, batch: StepBatch) -> Sequence[float | Floats]:
    """Return the advantage of each sample, [S]: one of all its tokens, or with a teacher one of each."""
    advantages_P_G = algorithm.advantages(rewards_P_G, batch.response_lengths)
    advantages_S: list[float | Floats] = [*advantages_P_G.reshape(-1).tolist()]
    for index, teacher in enumerate(batch.teacher_S):
        student = batch.samples_S[index].rollout_logprobs
        if teacher is not None and student is not None:
            advantages_S[index] = token_advantages(teacher, student)
    return advantages_S


def scored_samples(batch: StepBatch, advantages_S: Sequence[float | Floats]) -> dict[int, Sample]:
    """Return the samples of a batch with their advantages, by index. One without a reward takes no part."""
    scored = np.flatnonzero(~np.isnan(batch.rewards_P_G.reshape(-1))).tolist()
    return {index: replace(batch.samples_S[index], advantage=advantages_S[index]) for index in scored}
