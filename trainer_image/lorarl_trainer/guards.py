"""What an update has to pass: where it does not, it was withheld, and the run stops with the last checkpoint good."""

from __future__ import annotations

import math

from lorarl_trainer.errors import GradientError, PolicyDriftError
from lorarl_trainer.samples.types import UpdateResult


def require_finite_gradient(result: UpdateResult, step: int) -> None:
    """Stop where the gradient was no finite number; the update was withheld."""
    if not math.isfinite(result.grad_norm):
        raise GradientError(
            f"step {step}: the gradient's norm is {result.grad_norm}, expected a finite number (loss {result.loss}). The update was "
            "withheld: the last checkpoint is good. Lower spec.trainer.learningRate, spec.adapter.alpha or spec.algorithm.updatesPerStep."
        )


def require_agreement(result: UpdateResult, step: int, tolerance: float) -> None:
    """Stop where vLLM and the trainer disagree about the rollouts; the update was withheld."""
    if result.drifted:
        raise PolicyDriftError(
            f"step {step}: vLLM's and the trainer's log-probabilities of the same tokens differ by {result.logprob_difference:.2e} nats on "
            f"average (largest {result.largest_difference:.2e}), expected at most {tolerance:.0e} (spec.rollout.logprobTolerance). "
            "The update was withheld, so the last checkpoint is good. Either vLLM did not have the trainer's adapter, or their precisions "
            "differ: compare spec.rollout.adapterSync tensor with disk; raise the tolerance only if both differ alike."
        )
