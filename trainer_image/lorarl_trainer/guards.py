"""Checks that every update must pass. One that fails was withheld: the run stops, and the last checkpoint is good."""

from __future__ import annotations

import math

from lorarl_trainer.errors import GradientError, PolicyDriftError
from lorarl_trainer.samples.types import UpdateResult


def require_finite_gradient(result: UpdateResult, step: int) -> None:
    """Stop the run if the gradient is not finite. Its update was withheld.

    Raises:
        GradientError: The norm of the gradient is infinite or NaN.
    """
    loss, norm = result.metrics["loss"], result.metrics["grad_norm"]
    if not math.isfinite(norm):
        raise GradientError(
            f"step {step}: the gradient norm is {norm}, expected a finite number (loss {loss}). "
            "The update was withheld, so the last checkpoint is good. "
            "Lower spec.trainer.learningRate, spec.adapter.alpha or spec.algorithm.updatesPerStep."
        )


def require_agreement(result: UpdateResult, step: int, tolerance: float) -> None:
    """Stop the run if vLLM and the trainer disagree about the rollouts. The update was withheld.

    Raises:
        PolicyDriftError: Their log-probabilities differ by more than `tolerance`, in nats on average.
    """
    if result.disagreement is not None:
        raise PolicyDriftError(
            f"step {step}: vLLM's and the trainer's log-probabilities of the same tokens differ by "
            f"{result.disagreement.mean:.2e} nats on average (largest {result.disagreement.largest:.2e}), "
            f"expected at most {tolerance:.0e} (spec.rollout.logprobTolerance). "
            "The update was withheld, so the last checkpoint is good. "
            "Either vLLM did not have the trainer's adapter, or their precisions differ. "
            "Compare spec.rollout.adapterSync tensor with disk; "
            "raise the tolerance only if both show the same difference."
        )
