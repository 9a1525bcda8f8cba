"""An increase of `trainer.steps` that the training never saw.

The trainer reads the spec once per step, and a change takes up to a minute to reach its pod.
"""

from __future__ import annotations

from lorarl_api.faults import ManifestError
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.valid_spec import checked_spec, section, whole_number


def steps_to_do(snapshot: Snapshot) -> int | None:
    """`trainer.steps` if another attempt must do the missing steps; None if the job is complete."""
    try:
        resumes = checked_spec(snapshot.job).checkpoint.resume == "Auto"
    except ManifestError:  # No attempt can be built from this spec, so the job stays complete.
        return None
    return _unseen_steps(snapshot) if resumes else None


def too_late(snapshot: Snapshot) -> tuple[Event, ...]:
    """The Event for a user who raised the steps of a job that has ended."""
    if (steps := _unseen_steps(snapshot)) is None:
        return ()
    uri = snapshot.status.get("adapter", {}).get("uri") or "the URI of its newest adapter"
    message = (
        f"trainer.steps is now {steps}, but the job ended at step {snapshot.status.get('step', 0)}. "
        f"To continue, apply a new job with adapter.initFrom: {uri} and the remaining steps."
    )
    return (Event("Warning", News.TOO_LATE, message),)


def _unseen_steps(snapshot: Snapshot) -> int | None:
    """`trainer.steps` if it exceeds what the training knew; None also if the training never reported a number.

    An attempt that was created from the current spec has read it, even if its reports were lost. So a change causes at
    most one more attempt.
    """
    known = max(snapshot.status.get("step", 0), snapshot.status.get("totalSteps", 0))
    if not known or (snapshot.current and snapshot.current.generation == snapshot.job.generation):
        return None
    steps = whole_number(section(snapshot.spec, "trainer").get("steps"))
    return steps if steps and steps > known else None
