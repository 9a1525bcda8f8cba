"""Log-probabilities that a step needs besides the engine's: the reference's, and the policy's before later updates.

Shape suffixes: P prompts of a step, G completions or episodes per prompt, S samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lorarl_trainer.algorithms import Algorithm
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.arrays import Rewards, Sums
from lorarl_trainer.samples.requests import MOST_LOG_RATIO

ESTIMATORS: Mapping[str, Callable[[Sums], Sums]] = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: np.exp(log_ratio := np.minimum(-d, MOST_LOG_RATIO)) - 1 - log_ratio,
}
"""Estimates of KL(p || q) per token from d = log p - log q, where p drew the token (J. Schulman, 2020)."""


async def rewards_less_kl(workers: Workers, algorithm: Algorithm, batch: StepBatch) -> tuple[Rewards, dict[str, float]]:
    """Return the rewards less the KL penalty, [P, G], and metrics; the rewards themselves without such a penalty.

    The penalty of a completion is the sum over its tokens (arXiv:2203.02155, equation 2), and of an episode that over
    all of its samples.

        kl: k3 estimate of KL(policy || reference) per fresh token, in nats; absent if there is none.
        kl_penalty: what was subtracted from a reward, mean over all completions.
    """
    penalties_S, metrics = await kl_penalties(workers, algorithm, batch)
    if penalties_S is None:
        return batch.rewards_P_G, metrics
    return batch.rewards_P_G - _sums(penalties_S, batch).reshape(batch.rewards_P_G.shape), metrics


async def kl_penalties(
    workers: Workers, algorithm: Algorithm, batch: StepBatch
) -> tuple[list[Sums] | None, dict[str, float]]:
    """Return what each token of each sample loses of its reward, and the metrics of `rewards_less_kl`; None without."""
    penalty = algorithm.reward_kl
    if penalty is None:
        return None, {}
    reference_S = await workers.log_probabilities(batch.samples_S, batch.temperature, "reference")
    penalties_S, kl, tokens = [], 0.0, 0
    for sample, reference in zip(batch.samples_S, reference_S, strict=True):
        assert sample.rollout_logprobs is not None, "samples that have a reward are generated"
        difference = sample.rollout_logprobs.astype(np.float64) - reference
        penalties_S.append(penalty.coefficient * ESTIMATORS[penalty.estimator](difference))
        if sample.fresh:
            kl, tokens = kl + float(ESTIMATORS["k3"](difference).sum()), tokens + len(difference)
    mean = float(np.mean(_sums(penalties_S, batch)))
    return penalties_S, {"kl_penalty": mean} | ({"kl": kl / tokens} if tokens else {})


def _sums(penalties_S: Sequence[Sums], batch: StepBatch) -> Sums:
    """Return the sum of each episode's penalties, [P * G]."""
    sums_S = [penalty_T.sum() for penalty_T in penalties_S]
    return np.array([sum(sums_S[index] for index in span) for span in batch.spans])


async def with_old_logprobs(workers: Workers, algorithm: Algorithm, batch: StepBatch) -> StepBatch:
    """Return the batch with the policy's log-probabilities before the first update, if the loss corrects by them.

    Only the samples of later updates get them: the first update computes its own.
    """
    share = batch.rewards_P_G.size // algorithm.updates_per_step
    first = batch.spans[share - 1].stop
    if algorithm.loss.correction is None or first == len(batch.samples_S):
        return batch
    later = batch.samples_S[first:]
    old = await workers.log_probabilities(later, batch.temperature)
    updated = [replace(sample, old_logprobs=mine) for sample, mine in zip(later, old, strict=True)]
    return replace(batch, samples_S=[*batch.samples_S[:first], *updated])
