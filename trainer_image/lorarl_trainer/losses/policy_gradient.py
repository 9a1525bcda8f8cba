"""The clipped surrogate of PPO (arXiv:1707.06347) on given advantages, with or without a KL penalty to the base."""

from __future__ import annotations

import torch

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.samples.types import LOGPROB_DIFFERENCE, LossChoice


def policy_gradient(inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """See `base.Loss`.

    All columns but clipped_share are estimates that need the policy's own samples. Other samples leave them out.

        clipped_share: share of tokens whose loss is the clipped term, 0 to 1. Their gradient is zero. A ratio outside
            of the range from which the loss pulls back is not counted.
        mean_abs_logprob_diff: absolute difference of the engine's and the trainer's log-probabilities, in nats.
        rollout_kl: k3 estimate of KL(engine || trainer) per token, in nats: zero but for rounding.
        entropy: -log p of the sampled tokens, in nats, an unbiased estimate of the policy's entropy.
        kl: k3 estimate of KL(policy || base) per token, in nats; only with a KL penalty.
    """
    logprobs_N, measured_N, rollout_N, advantages_N = (
        inputs.logprobs,
        inputs.measured,
        inputs.rollout,
        inputs.advantages,
    )
    assert rollout_N is not None, "samples of a policy gradient are generated"
    # If nothing has changed since the rollout, the old policy is this one: a ratio of exactly 1, without the noise of
    # the engine's kernels.
    old_N = measured_N if inputs.on_policy else rollout_N
    ratio_N = (logprobs_N - old_N).exp()
    clip = choice.clip_range
    plain_N, clipped_N = ratio_N * advantages_N, ratio_N.clamp(1 - clip, 1 + clip) * advantages_N
    loss_N = -torch.minimum(plain_N, clipped_N)
    metrics = {"clipped_share": (clipped_N < plain_N).detach().float()}
    if inputs.on_policy:
        metrics[LOGPROB_DIFFERENCE] = (measured_N - rollout_N).abs()
        metrics["rollout_kl"] = k3(rollout_N, measured_N)
        metrics["entropy"] = -measured_N
    if inputs.base is not None:
        penalty_N = k3(logprobs_N, inputs.base)
        loss_N = loss_N + choice.kl_coefficient * penalty_N
        if inputs.on_policy:
            metrics["kl"] = penalty_N.detach()
    return loss_N, metrics


def k3(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate of KL(p || q) for samples of p: q/p - 1 - log(q/p).

    J. Schulman, "Approximating KL divergence", 2020.
    """
    log_ratio = others - logprobs
    return log_ratio.exp() - 1 - log_ratio
