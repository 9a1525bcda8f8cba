"""The policy gradient on given advantages, with one of three surrogates, with or without a KL penalty to the base."""

from __future__ import annotations

import torch

from lorarl_trainer.losses.base import LossInputs
from lorarl_trainer.losses.correction import importance_weights
from lorarl_trainer.losses.fresh import of_fresh
from lorarl_trainer.losses.surrogates import SURROGATES
from lorarl_trainer.samples.requests import LOGPROB_DIFFERENCE, MOST_LOG_RATIO, LossChoice


def policy_gradient(inputs: LossInputs, choice: LossChoice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """See `base.Loss`.

        clipped_share: share of tokens whose ratio is clipped, 0 to 1. In the clipped surrogate their gradient is zero,
            and a ratio outside of the range from which the loss pulls back is not counted. The gated one clips nothing.

    The others are estimates that need the policy's own samples. They are means over fresh tokens, and there are none of
    them in an update that has no such tokens.

        mean_abs_logprob_diff: absolute difference of the engine's and the trainer's log-probabilities, in nats.
        rollout_kl: k3 estimate of KL(engine || trainer) per token, in nats: zero but for rounding.
        entropy: -log p of the sampled tokens, in nats, an unbiased estimate of the policy's entropy.
        kl: k3 estimate of KL(policy || reference) per token, in nats; only with a KL penalty in the loss.

    With a correction, there are the columns of `correction.importance_weights` too, in every update.
    """
    measured_N, rollout_N = inputs.measured, inputs.rollout
    assert rollout_N is not None, "samples of a policy gradient are generated"
    # If nothing has changed since the rollout, the old policy is this one: a ratio of exactly 1, without the noise of
    # the engine's kernels.
    # Otherwise it is the policy at the beginning of the step, if that was computed, or else the engine's.
    old_N = measured_N if inputs.on_policy else rollout_N if inputs.old is None else inputs.old
    # What dropout changes is no difference between policies: it matters to the gradient alone.
    log_ratio_N = inputs.logprobs - inputs.logprobs.detach() + (measured_N - old_N)
    if choice.ratio == "sequence":
        assert inputs.sequences is not None, "a ratio of sequences needs to know them"
        log_ratio_N = inputs.sequences.means(log_ratio_N)
    loss_N, clipped_N = SURROGATES[choice.surrogate](log_ratio_N, inputs, choice)
    metrics = {"clipped_share": clipped_N.detach().float()}
    weight_N: torch.Tensor | None = None
    if choice.correction is not None:
        weight_N, columns = importance_weights(old_N - rollout_N, choice.correction, inputs.sequences)
        loss_N, metrics = loss_N * weight_N, metrics | columns
    if inputs.base is not None:
        kl_N = ESTIMATORS[choice.kl_estimator](inputs.logprobs, inputs.base)
        if weight_N is not None:  # what is masked trains by nothing
            kl_N = kl_N.masked_fill(weight_N == 0, 0.0)
        loss_N = loss_N + choice.kl_coefficient * kl_N
    if inputs.on_policy:
        own = {
            LOGPROB_DIFFERENCE: (measured_N - rollout_N).abs(),
            "rollout_kl": k3(rollout_N, measured_N),
            "entropy": -measured_N,
        }
        if inputs.base is not None:
            own["kl"] = k3(measured_N, inputs.base)
        metrics |= of_fresh(own, inputs.fresh)
    return loss_N, metrics


def k2(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the k2 estimate of KL(p || q) for samples of p: log(q/p)^2 / 2. Its gradient is that of the divergence."""
    return (others - logprobs).square() / 2


def k3(logprobs: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return the k3 estimate of KL(p || q) for samples of p: q/p - 1 - log(q/p), where q/p is cut from above.

    J. Schulman, "Approximating KL divergence", 2020.
    """
    log_ratio = (others - logprobs).clamp(max=MOST_LOG_RATIO)
    return log_ratio.exp() - 1 - log_ratio


ESTIMATORS = {"k2": k2, "k3": k3}
