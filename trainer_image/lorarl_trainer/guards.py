"""What an update must pass. One that does not was withheld, and the run stops with the last checkpoint good."""

from __future__ import annotations

import math

from lorarl_trainer.errors import GradientError, PolicyDriftError
from lorarl_trainer.samples.types import UpdateResult


def require_finite_gradient(result: UpdateResult, step: int) -> None:
    """Stop if the gradient is not a finite number; the update was withheld.

    Raises:
        GradientError: it is not.
    """
    loss, norm = result.metrics["loss"], result.metrics["grad_norm"]
    if not math.isfinite(norm):
        raise GradientError(
            f"step {step}: the gradient's norm is {norm}, expected a finite number (loss {loss}). The update was withheld: "
            "the last checkpoint is good. Lower spec.trainer.learningRate, spec.adapter.alpha or "
            "spec.algorithm.updatesPerStep."
        )


def require_agreement(result: UpdateResult, step: int, tolerance: float) -> None:
    """Stop if vLLM and the trainer disagree about the rollouts; the update was withheld.

    Raises:
        PolicyDriftError: they do.
    """
    if result.disagreement is not None:
        raise PolicyDriftError(
            f"step {step}: vLLM's and the trainer's log-probabilities of the same tokens differ by "
            f"{result.disagreement.mean:.2e} nats on average (largest {result.disagreement.largest:.2e}), expected at most "
            f"{tolerance:.0e} (spec.rollout.logprobTolerance). The update was withheld, so the last checkpoint is good. "
            "Either vLLM did not have the trainer's adapter, or their precisions differ: compare spec.rollout.adapterSync "
            "tensor with disk; raise the tolerance only if both differ alike."
        )
