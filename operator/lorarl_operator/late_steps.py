"""More `trainer.steps` than the training ever saw: it reads them once a step, and a change takes up to a minute to reach its pod."""

from __future__ import annotations

from lorarl_api.faults import ManifestError
from lorarl_operator.decision import Event
from lorarl_operator.snapshot import Snapshot
from lorarl_operator.valid_spec import checked_spec, part, whole

MORE_STEPS = "MoreSteps"
"""Reason of the condition Running after an attempt that made all the steps that it knew of."""


def steps_to_do(snapshot: Snapshot) -> int | None:
    """The steps for which another attempt goes on from the end of a training; None where that was the end of the job."""
    try:
        resumes = checked_spec(snapshot.job).checkpoint.resume == "Auto"
    except ManifestError:  # nothing can be made of it: what has succeeded stays so
        return None
    return _unseen_steps(snapshot) if resumes else None


def too_late(snapshot: Snapshot) -> tuple[Event, ...]:
    """What a user is told whose change of the steps a finished job does not take."""
    if (steps := _unseen_steps(snapshot)) is None:
        return ()
    uri = snapshot.status.get("adapter", {}).get("uri") or "the URI of its newest adapter"
    message = (
        f"trainer.steps is {steps} now, but the job has ended at step {snapshot.status.get('step', 0)}; apply a new job with "
        f"adapter.initFrom: {uri} and the steps that are left to go on"
    )
    return (Event("Warning", "TooLate", message),)


def _unseen_steps(snapshot: Snapshot) -> int | None:
    """`trainer.steps`, where they are more than the training knew of; None too where it never said what it knew.

    An attempt made from the spec as it is has read it, whatever came through of its reports: so a change makes one more attempt at most.
    """
    known = max(snapshot.status.get("step", 0), snapshot.status.get("totalSteps", 0))
    if not known or (snapshot.current and snapshot.current.generation == snapshot.job.generation):
        return None
    steps = whole(part(snapshot.spec, "trainer").get("steps"))
    return steps if steps and steps > known else None
