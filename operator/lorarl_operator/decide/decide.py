"""Decide what to do about one job, from what was observed and nothing else: no memory, no I/O.

A job's phases, and what moves it:

    Pending -> Starting -> Running -> Succeeded | Failed     as its RayJob does; the condition Running of a Pending job
                                                             says what it waits for
    Running -> Running                                       an attempt lost workers and continues with new ones
    Running -> Restarting -> Starting                        with a queue, an attempt lost its head and continues in the
                                                             same RayJob
    Starting, Running -> Restarting -> Starting              an attempt ended, and the next one follows
    any -> Suspending -> Suspended -> Starting               spec.suspend

`status.rayJobName` names the current attempt, or the next one to create. A transition is one write of the status,
which comes before any other change. RayJobs of other attempts are deleted. The next RayJob is created when no other
one is left and none of their pods works. So an operator may be killed at any moment, and its successor continues.

There is one exception, for speed. The first attempt's RayJob is created before its trainer gets permission to write
the status, and the status names the RayJob only after that. So the job asks for machines as early as possible, and no
trainer runs before it may report.

`attempt_start.py` creates an attempt, `attempt_progress.py` follows it, `attempt_recovery.py` lets it replace lost
workers, `attempt_restart.py` starts it again in its RayJob, `attempt_queue.py` says what its queue did to it, and
`attempt_end.py` ends it. Beside all that, `drain.py` says whether the pods may be evicted.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from lorarl_api.v1alpha1 import SWEEP_KIND
from lorarl_operator.decide.attempt_end import count_outcome, end_attempt, fail, finished, out_of_attempts, succeed
from lorarl_operator.decide.attempt_progress import follow, outcome_of
from lorarl_operator.decide.attempt_queue import ended_by_queue, is_stopped, once_asked
from lorarl_operator.decide.attempt_recovery import recover
from lorarl_operator.decide.attempt_restart import restart, uncounted_end
from lorarl_operator.decide.attempt_start import create_attempt
from lorarl_operator.decide.blockers import GOING_SECONDS, ray_job_stays
from lorarl_operator.decide.decision import Decision, Event
from lorarl_operator.decide.deletion import decide_deletion, finalizer_actions
from lorarl_operator.decide.drain import budget_actions
from lorarl_operator.decide.in_place import awaits_its_end
from lorarl_operator.decide.late_steps import steps_to_do
from lorarl_operator.decide.messages import resumes
from lorarl_operator.decide.models import Observed
from lorarl_operator.decide.outcome import Unsettled, lost
from lorarl_operator.decide.pod_ends import Kind, Outcome
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.retry_policy import judged
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.snapshot import Snapshot, deletions, soonest, take_snapshot
from lorarl_operator.decide.status import FINISHED, MAY_HAVE_RUN, SUSPENDED, SUSPENDING, Draft


def decide(observed: Observed, now: datetime, settings: Settings) -> Decision:
    """Decide what to do about a job."""
    snapshot = take_snapshot(observed, now, settings)
    goes = snapshot.job.deleted_at is not None
    decision = decide_deletion(snapshot) if goes else _decide_live(snapshot)
    before = () if goes else finalizer_actions(snapshot)
    return replace(decision, actions=(*before, *decision.actions, *budget_actions(snapshot)))


def _decide_live(snapshot: Snapshot) -> Decision:
    """Decide about a job that is not being deleted."""
    if snapshot.phase in FINISHED:
        return finished(snapshot)
    if snapshot.spec.get("suspend") is True and not is_stopped(snapshot):
        return once_asked(snapshot, _suspend(snapshot))
    if snapshot.current and (decision := restart(snapshot, snapshot.current)):
        return decision
    if decision := ended_by_queue(snapshot):
        return decision
    recovery = recover(snapshot, snapshot.current) if snapshot.current else None
    outcome = outcome_of(snapshot, snapshot.current) if snapshot.current and recovery is None else None
    if isinstance(outcome, Outcome):
        return end_attempt(snapshot, outcome)
    if not snapshot.current and snapshot.phase in MAY_HAVE_RUN:
        return end_attempt(snapshot, lost(snapshot.ray_job_name, snapshot.report))
    left = snapshot.left("startTime", "activeDeadlineSeconds")
    if left is not None and left <= 0:
        limit = snapshot.spec["activeDeadlineSeconds"]
        message = f"The job ran longer than activeDeadlineSeconds, {limit} s."
        return fail(snapshot, snapshot.draft(), Ended.DEADLINE_EXCEEDED, message)
    decision = recovery or (follow(snapshot, snapshot.current) if snapshot.current else create_attempt(snapshot))
    return replace(decision, recheck_seconds=soonest(decision.recheck_seconds, left))


def _suspend(snapshot: Snapshot) -> Decision:
    """Delete all RayJobs, also those of older attempts. The pods write a checkpoint within their grace period."""
    draft = snapshot.draft()
    before = uncounted_end(snapshot, snapshot.current) if snapshot.current else None
    last = before or snapshot.current
    if snapshot.current and before is None and awaits_its_end(snapshot, snapshot.current):
        last = None  # That end is counted.
    outcome = outcome_of(replace(snapshot, current=last), last) if last else None
    if isinstance(outcome, Outcome) and outcome.kind is Kind.SUCCEEDED and steps_to_do(snapshot) is None:
        return succeed(snapshot, draft)
    if draft.phase not in (SUSPENDING, SUSPENDED):
        if isinstance(outcome, Unsettled):
            return Decision(recheck_seconds=outcome.seconds)
        if not snapshot.current and draft.phase in MAY_HAVE_RUN:
            outcome = lost(snapshot.ray_job_name, snapshot.report)
        if outcome is not None:
            outcome = judged(snapshot.spec, outcome)
            count_outcome(snapshot, draft, outcome)
            if outcome.kind is Kind.FAILED and (out := out_of_attempts(snapshot, draft, outcome)):
                return out
    return _suspending_or_suspended(snapshot, draft)


def _how_to_resume(snapshot: Snapshot) -> str:
    """What ends a suspension. A sweep suspends a trial again that it has stopped or holds."""
    maker = snapshot.job.maker
    if maker is None or maker.kind != SWEEP_KIND:
        return f"If it is set to false, the job {resumes(snapshot.spec)}."
    whose = f"If {maker.kind} {maker.name} has set that, its status says why."
    return f"{whose} Otherwise set it to false, and the job {resumes(snapshot.spec)}."


def _suspending_or_suspended(snapshot: Snapshot, draft: Draft) -> Decision:
    """Suspending while there are RayJobs or pods, then Suspended."""
    if snapshot.current:  # A resumed job continues with the attempt after this one.
        draft.put("rayJobName", snapshot.current.name)
    draft.put("startTime", None)
    draft.put("dashboardURL", None)
    draft.put("requestedNodes", None)  # The queue may have more room when the job resumes.
    pods = snapshot.active_pods(snapshot.pods)
    before = draft.phase
    blocker = ray_job_stays(snapshot.ray_jobs, snapshot.now)
    if snapshot.ray_jobs or pods:
        draft.phase, own = SUSPENDING, Waiting.SUSPENDING
        message = blocker.message if blocker else "spec.suspend is true. The pods write a checkpoint and end."
    else:
        draft.phase, own = SUSPENDED, Waiting.SUSPENDED
        message = f"spec.suspend is true. {_how_to_resume(snapshot)}"
    reason = blocker.reason if blocker else own
    events = () if draft.phase == before else (Event("Normal", own, message),)
    if blocker and draft.reason("Running") != reason:
        events = (Event("Warning", reason, message),)
    draft.condition("Running", False, reason, message)
    draft.condition("Suspended", draft.phase == SUSPENDED, reason, message)
    going = GOING_SECONDS if snapshot.ray_jobs else None
    recheck = soonest(going, snapshot.until_gone(pods) if pods else None)
    return snapshot.decision(draft, *events, actions=deletions(snapshot.ray_jobs), recheck=recheck)
