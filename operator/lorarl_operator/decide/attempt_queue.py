"""An attempt whose queue took its machines back: whether that is a preemption, a stop, or the end of the job.

The answer is in Kueue's Workload, which is not watched. So it is fetched before the loss is counted.
"""

from __future__ import annotations

from dataclasses import replace

from lorarl_operator.decide.attempt_end import fail
from lorarl_operator.decide.decision import Decision, Want
from lorarl_operator.decide.kueue import stop_of
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import MAY_HAVE_RUN, PENDING

_ASK_AGAIN_SECONDS = 5.0


def ended_by_queue(snapshot: Snapshot) -> Decision | None:
    """What to do if a limit of the queue ended the job, or if that is not known yet; otherwise None."""
    draft, ray_job = snapshot.draft(), snapshot.current
    if is_stopped(snapshot) and (ray_job is None or ray_job.deleted_at):
        message = (
            f"RayJob {snapshot.ray_job_name} was deleted while its queue kept it stopped. "
            "To continue from its checkpoint, delete the job and apply it again."
        )
        return fail(snapshot, draft, Ended.QUEUE_STOPPED, message)
    if ray_job is None or not is_held(ray_job):
        return None
    evidence = snapshot.observed.evidence
    is_known = evidence is not None and (evidence.workload is not None or evidence.refused)
    if not is_known and (draft.phase in MAY_HAVE_RUN or ray_job.deleted_at):
        return Decision(wants_evidence=Want.WORKLOAD, recheck_seconds=_ASK_AGAIN_SECONDS)
    stop = stop_of(ray_job, evidence, snapshot.job.namespace)
    return fail(snapshot, draft, stop.ends, stop.message) if stop and stop.ends else None


def is_stopped(snapshot: Snapshot) -> bool:
    """Whether an administrator stopped the job. Only an administrator ends that, neither a change nor a suspension.

    A new RayJob would have a new Workload, which is not stopped.
    """
    draft, ray_job = snapshot.draft(), snapshot.current
    if draft.phase == PENDING and str(draft.reason("Running")) == Waiting.QUEUE_STOPPED:
        return True
    if ray_job is None or ray_job.deleted_at or not is_held(ray_job):
        return False
    return stop_of(ray_job, snapshot.observed.evidence, snapshot.job.namespace) is not None


def once_asked(snapshot: Snapshot, decision: Decision) -> Decision:
    """A decision that deletes the RayJob, once its queue was asked whether an administrator has stopped it meanwhile.

    The status learns of that only at the next look, and the RayJob's deletion would lift it.
    """
    ray_job, evidence = snapshot.current, snapshot.observed.evidence
    if ray_job is None or ray_job.deleted_at or not is_held(ray_job):
        return decision
    if evidence is None or (evidence.workload is None and not evidence.refused):
        return Decision(wants_evidence=Want.STOP, recheck_seconds=_ASK_AGAIN_SECONDS)
    return replace(decision, wants_evidence=Want.STOP)  # What is known may be old.


def is_held(ray_job: RayJob) -> bool:
    """Whether a queue of Kueue keeps the RayJob suspended. One that has ended stays so, whatever its queue does."""
    ended = ray_job.deployment_status in {"Complete", "Failed"}
    return bool(ray_job.queue) and ray_job.suspended and ray_job.runs_here and not ended
