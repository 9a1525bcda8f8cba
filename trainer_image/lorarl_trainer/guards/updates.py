"""The check that every update must pass. If it fails, the update was withheld, and the run stops."""

from __future__ import annotations

from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.samples.agreement import TIMES_NORMAL, Disagreement
from lorarl_trainer.samples.requests import UpdateResult


def require_agreement(result: UpdateResult, step: int) -> None:
    """Stop the run if vLLM and the trainer disagree about the rollouts. The update was withheld.

    Raises:
        PolicyDriftError: Their log-probabilities differ by more than is normal for this run, or than the user allows.
    """
    if result.disagreement is not None:
        raise PolicyDriftError(f"step {step}: {describe(result.disagreement)}")


def describe(found: Disagreement) -> str:
    """Return what differs, what was expected, and what to do."""
    differ = (
        f"vLLM's and the trainer's log-probabilities of the same tokens differ by {found.mean:.2e} nats on average "
        f"(largest {found.largest:.2e})"
    )
    withheld = "The update was withheld, so the last checkpoint is good. "
    if found.tolerance is not None:
        return (
            f"{differ}, expected at most {found.tolerance:.0e} (spec.rollout.logprobTolerance). {withheld}"
            "Remove spec.rollout.logprobTolerance to compare with what is normal for this model instead."
        )
    where = f" from position {found.position:,} on" if found.position else ""
    return (
        f"{differ}. That is {TIMES_NORMAL * found.times:.1f} times the difference of the base model "
        f"when the run started{where}, expected at most {TIMES_NORMAL:g} times. {withheld}"
        "Compare spec.rollout.adapterSync tensor with disk, and please report this. "
        "spec.rollout.logprobTolerance replaces this check by a mean difference in nats."
    )
