"""The end of an attempt, the attempt after it, and the end of the job."""

from __future__ import annotations

from dataclasses import replace

from lorarl_operator.decide import backoff
from lorarl_operator.decide.awaited import AWAITED_SECONDS, is_published, long_unpublished
from lorarl_operator.decide.decision import Decision, DeleteJob, Event
from lorarl_operator.decide.elastic import node_range
from lorarl_operator.decide.in_place import awaits_its_end, restart_in_place, restartable
from lorarl_operator.decide.late_steps import steps_to_do, too_late
from lorarl_operator.decide.messages import resumes, sentences
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.names import ray_job_name
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.outcome import HEAD_GONE
from lorarl_operator.decide.permanent import why_permanent
from lorarl_operator.decide.pod_ends import Kind, Outcome
from lorarl_operator.decide.reasons import Ended, Reason, Waiting
from lorarl_operator.decide.retry_policy import judged
from lorarl_operator.decide.snapshot import Snapshot, deletions
from lorarl_operator.decide.status import FAILED, RUNNING, SUCCEEDED, Draft
from lorarl_operator.decide.valid_spec import whole_number

_SELDOM_SECONDS = 600.0
"""When to say again why a job outlives its ttl. The end of that is a change of its status, which a watch reports."""
_DEFAULT_BACKOFF_LIMIT = 3
_DEFAULT_FRUITLESS_LIMIT = 20


def end_attempt(snapshot: Snapshot, outcome: Outcome) -> Decision:
    """End the job, or start the next attempt after a delay."""
    draft, outcome = snapshot.draft(), judged(snapshot.spec, outcome)
    following = snapshot.attempt + 1
    if outcome.kind is Kind.SUCCEEDED:
        if (steps := steps_to_do(snapshot)) is None:
            return succeed(snapshot, draft)
        message = (
            f"Attempt {snapshot.attempt} finished the steps it knew of. trainer.steps is now {steps}; "
            f"attempt {following} does the remaining steps."
        )
        return next_attempt(snapshot, draft, Event("Normal", Waiting.MORE_STEPS, message))
    count_outcome(snapshot, draft, outcome)
    if outcome.kind is Kind.FAILED and (out := out_of_attempts(snapshot, draft, outcome)):
        return out
    if outcome.kind is Kind.PREEMPTED and (stuck := no_progress(snapshot, draft, outcome)):
        return stuck
    reason = Waiting.BACKING_OFF if outcome.kind is Kind.FAILED else backoff.preemption_reason(draft, snapshot.now)
    ended = f"Attempt {snapshot.attempt} ended with {outcome.reason}: {outcome.message}"
    pause = backoff.delay(reason, draft, snapshot.settings)
    if outcome.kind is Kind.PREEMPTED and (ray_job := restartable(snapshot, outcome, pause)):
        why = Event(
            "Warning",
            Waiting.RESTARTING,
            sentences(ended, f"It {resumes(snapshot.spec)}, in the same RayJob, which keeps its place in the queue"),
        )
        return restart_in_place(snapshot, draft, ray_job, why)
    message = sentences(ended, _what_follows(snapshot, draft, reason))
    return next_attempt(snapshot, draft, Event("Warning", reason, message))


def count_outcome(snapshot: Snapshot, draft: Draft, outcome: Outcome) -> None:
    """Count an attempt that ended or lost workers, and the fault of its node.

    A loss that ends its attempt because the recovery failed was counted before. So was that of an attempt that waits
    since then in its queue, or for its start in the same RayJob.
    """
    if outcome.faulty_node:
        draft.put("faultyNodes", snapshot.faults_after(outcome))
    if outcome.kind is Kind.PREEMPTED and snapshot.recovering_since is None:
        ray_job = snapshot.current
        waits = ray_job is not None and (ray_job.suspended or awaits_its_end(snapshot, ray_job))
        waits_since_a_loss = waits and draft.is_true("Disrupted")
        if not waits_since_a_loss or draft.phase == RUNNING:
            draft.count("preemptions")
        message = f"Attempt {snapshot.attempt}: {outcome.message}"
        draft.condition("Disrupted", True, outcome.reason, message)
        _count_progress(snapshot, draft)
    elif outcome.kind is Kind.FAILED:
        draft.count("attempts")
    if outcome.reason == Ended.WORKER_UNREACHABLE and outcome.kind is Kind.FAILED and snapshot.recovering_since:
        draft.put("preemptions", draft.counter("preemptions") - 1)  # The loss that was counted is this failure.


def _count_progress(snapshot: Snapshot, draft: Draft) -> None:
    """Count a preemption for maxPreemptionsWithoutProgress, unless the attempt got further than any before."""
    step = int(snapshot.status.get("step", 0))
    if step > draft.counter("furthestStep"):
        draft.put("furthestStep", step)
        draft.put("preemptionsWithoutProgress", 0)
    else:
        draft.count("preemptionsWithoutProgress")


def no_progress(snapshot: Snapshot, draft: Draft, outcome: Outcome) -> Decision | None:
    """Fail the job if maxPreemptionsWithoutProgress is reached; otherwise None."""
    limit = whole_number(snapshot.spec.get("maxPreemptionsWithoutProgress"), _DEFAULT_FRUITLESS_LIMIT)
    count = draft.counter("preemptionsWithoutProgress")
    if limit is None or count < limit:
        return None
    message = (
        f"{count} attempts in a row ended before they got beyond step {draft.counter('furthestStep')}, "
        f"and maxPreemptionsWithoutProgress is {limit}. The last one: {outcome.message}"
    )
    return fail(snapshot, draft, Ended.NO_PROGRESS, message)


def out_of_attempts(snapshot: Snapshot, draft: Draft, outcome: Outcome) -> Decision | None:
    """Fail the job if no attempt can succeed, or if backoffLimit allows no further one; otherwise None."""
    if why := why_permanent(snapshot, draft, outcome):
        message = f"Attempt {snapshot.attempt} failed, and {why}. {outcome.message}"
        return fail(snapshot, draft, outcome.reason, message)
    limit = _backoff_limit(snapshot)
    if limit is None or draft.counter("attempts") <= limit:
        return None
    message = f"Attempt {snapshot.attempt} failed, and backoffLimit is {limit}. {outcome.message}"
    return fail(snapshot, draft, outcome.reason, message)


def succeed(snapshot: Snapshot, draft: Draft) -> Decision:
    """End the job as Succeeded."""
    message = f"Training finished in attempt {snapshot.attempt}."
    draft.phase = SUCCEEDED
    draft.stamp("completionTime")
    draft.condition("Running", False, News.SUCCEEDED, message)
    draft.condition("Complete", True, News.SUCCEEDED, message)
    draft.put("rayJobName", snapshot.ray_job_name)
    events = (Event("Normal", News.SUCCEEDED, message), *too_late(snapshot))
    return snapshot.decision(draft, *events, actions=deletions(snapshot.others), recheck=0)


def fail(snapshot: Snapshot, draft: Draft, reason: Reason, message: str) -> Decision:
    """End the job as Failed."""
    draft.phase = FAILED
    draft.stamp("completionTime")
    draft.condition("Running", False, reason, message)
    draft.condition("Failed", True, reason, message)
    event = Event("Warning", reason, message)
    return snapshot.decision(draft, event, actions=deletions(_unneeded(snapshot)), recheck=0)


def finished(snapshot: Snapshot) -> Decision:
    """Delete a finished job when ttlSecondsAfterFinished has passed; until then remove what it does not need."""
    left, kept = snapshot.left("completionTime", "ttlSecondsAfterFinished"), tuple[Event, ...]()
    if left is not None and left <= 0:
        if snapshot.observed.is_noted and is_published(snapshot.job):
            return Decision(actions=(DeleteJob(),))
        kept = _kept(snapshot)
        left = _SELDOM_SECONDS if kept else AWAITED_SECONDS
    actions = deletions(_unneeded(snapshot))
    decision = snapshot.decision(snapshot.draft(), *too_late(snapshot), actions=actions, recheck=left)
    return replace(decision, events=(*decision.events, *kept))


def _kept(snapshot: Snapshot) -> tuple[Event, ...]:
    """Why a job outlives its ttl, if that may last."""
    names = ", ".join(long_unpublished(snapshot.job, snapshot.now))
    if not names:
        return ()
    why = f"ttlSecondsAfterFinished has passed, and the job stays until this is published or withdrawn: {names}."
    fix = (
        "The condition Published says what is in the way. "
        "To let the job go, remove the entry from spec.publish, which withdraws all that it serves."
    )
    return (Event("Warning", News.KEPT, f"{why} {fix}"),)


def next_attempt(snapshot: Snapshot, draft: Draft, why: Event, *, requested_nodes: int | None = None) -> Decision:
    """Delete the attempt's RayJob. The next one is created after the delay that belongs to the reason.

    `requested_nodes`: For how many nodes it asks. By default it asks for all.
    """
    nodes = node_range(snapshot.spec)
    draft.put("requestedNodes", requested_nodes)
    if nodes.is_elastic:
        draft.put("nodes", requested_nodes or nodes.most)
    draft.restart(ray_job_name(snapshot.job.name, snapshot.attempt + 1), None, why.reason, why.message)
    recheck = backoff.delay(why.reason, draft, snapshot.settings)
    return snapshot.decision(draft, why, actions=deletions(snapshot.ray_jobs), recheck=recheck)


def _what_follows(snapshot: Snapshot, draft: Draft, reason: Waiting) -> str:
    following = snapshot.attempt + 1
    if reason == Waiting.RESTARTING:
        return f"Attempt {following} {resumes(snapshot.spec)}."
    why = f"preemption {draft.counter('preemptionsWithoutProgress')} in a row without a further step"
    if reason == Waiting.BACKING_OFF:
        why = f"failure {draft.counter('attempts')}, backoffLimit {_backoff_limit(snapshot)}"
    return f"Attempt {following} follows in {backoff.delay(reason, draft, snapshot.settings):g} s ({why})."


def _backoff_limit(snapshot: Snapshot) -> int | None:
    return whole_number(snapshot.spec.get("backoffLimit"), _DEFAULT_BACKOFF_LIMIT)


def _unneeded(snapshot: Snapshot) -> list[RayJob]:
    """RayJobs that a finished job does not need.

    The last one stays if KubeRay removes its workers and keeps its head for the logs. KubeRay has no rule for a job
    that was stopped, and it never removes workers whose head is gone.
    """
    return [each for each in snapshot.ray_jobs if each is not snapshot.current or not _cleans_up(each)]


def _cleans_up(ray_job: RayJob) -> bool:
    if ray_job.deployment_status == "Complete":
        return ray_job.job_status == "SUCCEEDED"
    return ray_job.deployment_status == "Failed" and ray_job.message != HEAD_GONE
