"""The advantages of a step's samples, from rewards, a critic or a teacher.

Shape suffixes: P prompts of a step, G completions or episodes per prompt, S samples.
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
    """Return the advantage of each sample, [S]: one of all its tokens, or with a teacher one of each.

    Episodes are compared, and all samples of one have its advantage.
    """
    of_episodes = algorithm.advantages(rewards_P_G, batch.response_lengths).reshape(-1).tolist()
    advantages_S: list[float | Floats] = [one for one, span in zip(of_episodes, batch.spans, strict=True) for _ in span]
    for index, teacher in enumerate(batch.teacher_S):
        student = batch.samples_S[index].rollout_logprobs
        if teacher is not None and student is not None:
            advantages_S[index] = token_advantages(teacher, student)
    return advantages_S


def scored_episodes(batch: StepBatch, advantages_S: Sequence[float | Floats]) -> dict[int, list[Sample]]:
    """Return the samples of each episode with their advantages, by its index. One without a reward takes no part."""
    scored = np.flatnonzero(~np.isnan(batch.rewards_P_G.reshape(-1))).tolist()
    return {
        index: _together([replace(batch.samples_S[n], advantage=advantages_S[n]) for n in batch.spans[index]])
        for index in scored
    }


def _together(samples: list[Sample]) -> list[Sample]:
    """Return the samples of an episode, which know how long it is if there are several."""
    if len(samples) == 1:
        return samples
    tokens = sum(sample.trained_length for sample in samples)
    return [replace(sample, episode_length=tokens) for sample in samples]
