"""The check that every update must pass. If it fails, the update was withheld, and the run stops."""

from __future__ import annotations

from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.samples.types import UpdateResult


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
