"""What to do about one job, from what is there and nothing else: no memory, no I/O.

The states that a job goes through, and who moves it:

    Pending -> Starting -> Running -> Succeeded | Failed     as its RayJob goes; Pending says in its condition Running what it waits for
    Starting, Running -> Restarting -> Starting              an attempt ended, and the next one follows
    any -> Suspending -> Suspended -> Starting               spec.suspend

`status.rayJobName` names the attempt that is, or that is made next. A transition is one write of the status, made before anything
else changes; RayJobs of other attempts are deleted, and the next one is made when none is left and no pod of theirs works. So whoever is
killed at any moment, the next operator goes on. A first attempt's RayJob is made before its trainer is granted its right, and the status
that names the RayJob is written after that: machines are asked for as soon as can be, and no trainer runs before it may report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from lorarl_api.faults import ManifestError
from lorarl_operator import backoff
from lorarl_operator.blockers import (
    EVENT_REASONS,
    GOING_SECONDS,
    KUEUE_WANTS_IT,
    STARTING_REASON,
    Wait,
    name_taken,
    queued,
    ray_job_stays,
    refused,
    starting,
)
from lorarl_operator.decision import Apply, Create, Decision, DeleteJob, Event, Want
from lorarl_operator.deletion import decide_deletion, finalizer_actions
from lorarl_operator.late_steps import MORE_STEPS, steps_to_do, too_late
from lorarl_operator.manifests.rayjob import ray_job as build_ray_job
from lorarl_operator.models import Observed, RayJob
from lorarl_operator.names import ray_job_name
from lorarl_operator.outcome import HEAD_GONE, Kind, Outcome, Unsettled, ending, lost
from lorarl_operator.settings import Settings
from lorarl_operator.snapshot import Snapshot, deletions, look, soonest
from lorarl_operator.status import (
    FAILED,
    FINISHED,
    MAY_HAVE_RUN,
    PENDING,
    RESTARTING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
    SUSPENDING,
    Draft,
)
from lorarl_operator.valid_spec import checked_spec, whole

_ENDED = frozenset({"Complete", "Failed"})
_AT_WORK = frozenset({"RUNNING", "SUCCEEDED", "FAILED", "STOPPED"})
"""Ray's states of a job whose process has started."""
_SLOWEST_LOOK = 120.0
_NODE_LOOK = 20.0
"""Seconds between looks at the events of a pod that a node is busy with: kubelet says there what it misses."""


def decide(observed: Observed, now: datetime, settings: Settings) -> Decision:
    """What to do about a job.

    Args:
        observed: All that is there.
        now: The time, with its zone.
        settings: The installation's choices.
    """
    snapshot = look(observed, now, settings)
    if snapshot.job.deleted_at:
        return decide_deletion(snapshot)
    decision = _decide_live(snapshot)
    first = finalizer_actions(snapshot)
    if not first:
        return decision
    return Decision(
        prepare=decision.prepare,
        status=decision.status,
        events=decision.events,
        actions=(*first, *decision.actions),
        recheck_seconds=decision.recheck_seconds,
        wants_evidence=decision.wants_evidence,
    )


def _decide_live(snapshot: Snapshot) -> Decision:
    if snapshot.phase in FINISHED:
        return _finished(snapshot)
    if snapshot.spec.get("suspend") is True:
        return _suspend(snapshot)
    if snapshot.current and (end := _end(snapshot, snapshot.current)) and isinstance(end, Outcome):
        return _end_attempt(snapshot, end)
    if not snapshot.current and snapshot.phase in MAY_HAVE_RUN:
        return _end_attempt(snapshot, lost(snapshot.ray_job_name, snapshot.report))
    if (left := snapshot.left("startTime", "activeDeadlineSeconds")) is not None and left <= 0:
        limit = snapshot.spec["activeDeadlineSeconds"]
        return _fail(
            snapshot, snapshot.draft(), "DeadlineExceeded", f"the job ran longer than activeDeadlineSeconds, {limit} s"
        )
    decision = _follow(snapshot, snapshot.current) if snapshot.current else _make(snapshot)
    return replace(decision, recheck_seconds=soonest(decision.recheck_seconds, left))


# ---- an attempt that is there ----------------------------------------------------------------------------------------------------------


def _end(snapshot: Snapshot, ray_job: RayJob) -> Outcome | Unsettled | None:
    return ending(
        ray_job, snapshot.attempt_pods, snapshot.departed_pods, snapshot.report, snapshot.now, snapshot.settings
    )


def _follow(snapshot: Snapshot, ray_job: RayJob) -> Decision:
    """Follow a RayJob that goes on; of a new one, the trainer's right comes first."""
    decision = _progress(snapshot, ray_job)
    if snapshot.announced or decision.status is None:
        return decision
    granted = _applicable(snapshot.grants)
    if refusal := snapshot.refusal(*(each.manifest for each in granted)):
        return _blocked(snapshot, refused(refusal), again=snapshot.refused_for(refusal))
    return replace(decision, prepare=(*granted, *decision.prepare))


def _applicable(applies: Callable[[], tuple[Apply, ...]]) -> tuple[Apply, ...]:
    """None, where the spec is not valid any more: the RayJob was made from one that was."""
    try:
        return applies()
    except ManifestError:
        return ()


def _progress(snapshot: Snapshot, ray_job: RayJob) -> Decision:
    """Say of a RayJob that goes on how it goes."""
    end = _end(snapshot, ray_job)
    settle = end.seconds if isinstance(end, Unsettled) else None
    draft = snapshot.draft()
    draft.put("rayJobName", ray_job.name)
    draft.put("dashboardURL", _url(ray_job.dashboard_url))
    if draft.holds("Suspended"):
        draft.condition("Suspended", False, "Resumed", "spec.suspend is false")
    if ray_job.deployment_status in _ENDED:  # why is not known yet
        return Decision(recheck_seconds=settle)
    if ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended"}:
        return _queued(snapshot, draft, ray_job)
    draft.start_clock()
    # A RayJob whose driver has started stays Running, though Ray's dashboard may not answer for a while.
    if ray_job.deployment_status == "Running" and (ray_job.job_status in _AT_WORK or draft.phase == RUNNING):
        news = (
            ()
            if draft.phase == RUNNING
            else (Event("Normal", RUNNING, f"attempt {snapshot.attempt} runs: RayJob {ray_job.name}"),)
        )
        draft.phase = RUNNING
        draft.condition("Running", True, RUNNING, f"attempt {snapshot.attempt} trains in RayJob {ray_job.name}")
        if draft.holds("Disrupted"):
            draft.condition("Disrupted", False, RUNNING, f"attempt {snapshot.attempt} runs")
        return snapshot.decision(draft, *news, recheck=settle)
    return _starting(snapshot, draft, ray_job, settle)


def _queued(snapshot: Snapshot, draft: Draft, ray_job: RayJob) -> Decision:
    """A queue holds the RayJob, or has taken its machines back: it goes on by itself, with the same RayJob, when there is room."""
    wait = queued(ray_job, snapshot.observed.evidence)
    news = []
    if draft.phase == RUNNING:
        draft.count("preemptions")
        message = wait.message
        if ray_job.queue:
            message = f"queue {ray_job.queue} took the machines of attempt {snapshot.attempt} back; it goes on from its checkpoint when there is room"
        draft.condition("Disrupted", True, "Preempted", message, anew=True)
        news = [Event("Warning", "Preempted", message)]
    elif draft.reason("Running") != wait.reason:
        news = [Event("Normal", wait.reason, wait.message)]
    draft.phase = PENDING
    draft.put("startTime", None)
    # Without evidence nothing new is known: what it said of the queue still holds.
    known = snapshot.observed.evidence is not None and snapshot.observed.evidence.workload is not None
    if known or draft.reason("Running") != wait.reason:
        draft.condition("Running", False, wait.reason, wait.message)
    age = (snapshot.now - ray_job.created_at).total_seconds()
    return snapshot.decision(
        draft, *news, recheck=_patience(snapshot, age, _SLOWEST_LOOK), wants=_want(snapshot, age, Want.WORKLOAD)
    )


def _starting(snapshot: Snapshot, draft: Draft, ray_job: RayJob, recheck: float | None) -> Decision:
    """The RayJob is not held back, but its process does not run yet."""
    pods = snapshot.attempt_pods
    wait = starting(snapshot.observed, ray_job, snapshot.clusters, pods, snapshot.now)
    known = draft.reason("Running")
    if snapshot.observed.evidence is None and wait.reason == STARTING_REASON and known in EVENT_REASONS:
        # What events told stays true until they are looked at again.
        wait = Wait(known, draft.message("Running"))
    # Before KubeRay has begun, a RayJob that a queue let go is as old as its wait in the queue.
    begun = ray_job.started_at or (None if ray_job.queue else ray_job.created_at)
    age = (snapshot.now - begun).total_seconds() if begun else 0.0
    left = _left_to_start(snapshot, age)
    if left is not None and left <= 0:
        return _never_started(snapshot, draft, wait)
    news = []
    if not wait.stuck and draft.phase != STARTING:
        news.append(Event("Normal", STARTING, f"attempt {snapshot.attempt} starts: RayJob {ray_job.name}"))
    if wait.stuck and wait.reason != known:
        news.append(Event("Warning", wait.reason, wait.message))
    draft.phase = PENDING if wait.stuck else STARTING
    draft.condition("Running", False, wait.reason, wait.message)
    busy = any(pod.node and not pod.ready and not pod.deletion_asked_at for pod in pods)
    look_again = _patience(snapshot, age, _NODE_LOOK if busy else _SLOWEST_LOOK)
    again = _made_again(snapshot) if wait.ours else ()
    return snapshot.decision(
        draft, *news, prepare=again, recheck=soonest(recheck, look_again, left), wants=_want(snapshot, age, Want.EVENTS)
    )


def _left_to_start(snapshot: Snapshot, waited: float) -> float | None:
    """Seconds that are left of startDeadlineSeconds; None without it."""
    limit = whole(snapshot.spec.get("startDeadlineSeconds"))
    return None if limit is None else limit - waited


def _never_started(snapshot: Snapshot, draft: Draft, wait: Wait) -> Decision:
    limit = snapshot.spec["startDeadlineSeconds"]
    return _fail(
        snapshot,
        draft,
        "StartDeadlineExceeded",
        f"attempt {snapshot.attempt} did not run within {limit} s: {wait.message}",
    )


def _made_again(snapshot: Snapshot) -> tuple[Apply, ...]:
    """Somebody deleted what we had made: all of it is made sure of."""
    prepare = _applicable(snapshot.prepared)
    return () if snapshot.refusal(*(each.manifest for each in prepare)) else prepare


def _want(snapshot: Snapshot, age: float, want: Want) -> Want | None:
    """Evidence, where something takes longer than it should. A negative age is a clock that is behind."""
    return want if age >= snapshot.settings.stuck_seconds or age < 0 else None


def _patience(snapshot: Snapshot, age: float, slowest: float) -> float:
    """Seconds until the next look at what is stuck: it doubles with the time that it has been so."""
    stuck = snapshot.settings.stuck_seconds
    return stuck - age if 0 <= age < stuck else min(max(age, stuck), slowest)


def _url(address: str) -> str | None:
    if not address:
        return None
    return address if "://" in address else f"http://{address}"


# ---- the end of an attempt, and the next one -------------------------------------------------------------------------------------------


def _count(draft: Draft, end: Outcome, attempt: int) -> None:
    """Count an attempt that ended."""
    if end.kind is Kind.PREEMPTED:
        draft.count("preemptions")
        draft.condition("Disrupted", True, end.reason, f"attempt {attempt}: {end.message}", anew=True)
    elif end.kind is Kind.FAILED:
        draft.count("attempts")


def _end_attempt(snapshot: Snapshot, end: Outcome) -> Decision:
    draft = snapshot.draft()
    following = snapshot.attempt + 1
    if end.kind is Kind.SUCCEEDED:
        if (steps := steps_to_do(snapshot)) is None:
            return _succeed(snapshot, draft)
        message = f"attempt {snapshot.attempt} made the steps it knew of; trainer.steps is {steps} now, and attempt {following} makes the rest"
        return _next_attempt(snapshot, draft, Event("Normal", MORE_STEPS, message))
    _count(draft, end, snapshot.attempt)
    if end.kind is Kind.FAILED and (out := _out_of_attempts(snapshot, draft, end)):
        return out
    reason = backoff.BACKING_OFF if end.kind is Kind.FAILED else backoff.reason_of_preemption(draft, snapshot.now)
    delay = backoff.wait(reason, draft, snapshot.settings)
    follows = f"attempt {following} follows in {delay:g} s"
    if reason == backoff.BACKING_OFF:
        follows += f" (failure {draft.counter('attempts')}, backoffLimit {whole(snapshot.spec.get('backoffLimit'), 3)})"
    elif reason == backoff.PREEMPTED_AGAIN:
        follows += f" (preemption {draft.counter('preemptions')}, soon after the one before)"
    else:
        follows = f"attempt {following} goes on from the newest checkpoint"
    message = f"attempt {snapshot.attempt} ended, {end.reason}: {end.message}; {follows}"
    return _next_attempt(snapshot, draft, Event("Warning", reason, message))


def _next_attempt(snapshot: Snapshot, draft: Draft, why: Event) -> Decision:
    draft.phase = RESTARTING
    draft.put("rayJobName", ray_job_name(snapshot.job.name, snapshot.attempt + 1))
    draft.put("dashboardURL", None)
    draft.condition("Running", False, why.reason, why.message, anew=True)
    return snapshot.decision(
        draft, why, actions=deletions(snapshot.ray_jobs), recheck=backoff.wait(why.reason, draft, snapshot.settings)
    )


def _out_of_attempts(snapshot: Snapshot, draft: Draft, end: Outcome) -> Decision | None:
    limit = whole(snapshot.spec.get("backoffLimit"), 3)
    if limit is None or draft.counter("attempts") <= limit:
        return None
    return _fail(
        snapshot, draft, end.reason, f"attempt {snapshot.attempt} failed, and backoffLimit is {limit}: {end.message}"
    )


def _succeed(snapshot: Snapshot, draft: Draft) -> Decision:
    message = f"training has ended in attempt {snapshot.attempt}"
    draft.phase = SUCCEEDED
    draft.end_clock()
    draft.condition("Running", False, SUCCEEDED, message)
    draft.condition("Complete", True, SUCCEEDED, message)
    draft.put("rayJobName", snapshot.ray_job_name)
    return snapshot.decision(
        draft, Event("Normal", SUCCEEDED, message), *too_late(snapshot), actions=deletions(snapshot.others), recheck=0
    )


def _fail(snapshot: Snapshot, draft: Draft, reason: str, message: str) -> Decision:
    draft.phase = FAILED
    draft.end_clock()
    draft.condition("Running", False, FAILED, message)
    draft.condition("Failed", True, reason, message)
    return snapshot.decision(draft, Event("Warning", reason, message), actions=deletions(_live(snapshot)), recheck=0)


def _live(snapshot: Snapshot) -> list[RayJob]:
    """RayJobs that a finished job does not need: all but the last one, where KubeRay lets its workers go and keeps its head for the logs.

    KubeRay has no rule for a job that was stopped, and leaves workers whose head is gone alone for ever.
    """
    return [each for each in snapshot.ray_jobs if each is not snapshot.current or not _cleans_up(each)]


def _cleans_up(ray_job: RayJob) -> bool:
    if ray_job.deployment_status == "Complete":
        return ray_job.job_status == "SUCCEEDED"
    return ray_job.deployment_status == "Failed" and ray_job.message != HEAD_GONE


def _finished(snapshot: Snapshot) -> Decision:
    left = snapshot.left("completionTime", "ttlSecondsAfterFinished")
    if left is not None and left <= 0:
        return Decision(actions=(DeleteJob(),))
    return snapshot.decision(snapshot.draft(), *too_late(snapshot), actions=deletions(_live(snapshot)), recheck=left)


def _make(snapshot: Snapshot) -> Decision:
    """Make the attempt's RayJob, when nothing of another attempt works any more and its time has come."""
    going = deletions(snapshot.others)
    if snapshot.name_taken:
        return _blocked(
            snapshot, name_taken("RayJob", snapshot.ray_job_name), again=snapshot.settings.refused_briefly_seconds
        )
    if snapshot.others:
        if (wait := ray_job_stays(snapshot.others, snapshot.now)) and backoff.pause(
            snapshot.draft(), snapshot.now, snapshot.settings
        ) <= 0:
            return _blocked(snapshot, wait, again=snapshot.settings.refused_seconds)
        return Decision(actions=tuple(going), recheck_seconds=GOING_SECONDS)
    if pods := snapshot.training():
        return Decision(recheck_seconds=snapshot.until_gone(pods))
    if (pause := backoff.pause(snapshot.draft(), snapshot.now, snapshot.settings)) > 0:
        return Decision(recheck_seconds=pause)
    try:
        prepare = snapshot.prepared() if snapshot.announced else snapshot.needs()
        queued = True if _kueue_wants_it(snapshot) else None
        manifest = build_ray_job(
            snapshot.job, checked_spec(snapshot.job), snapshot.attempt, snapshot.settings, queued=queued
        )
    except ManifestError as error:
        message = f"{error}; correct it and apply the job anew (what cannot be changed needs a new job)"
        return _blocked(snapshot, Wait("Invalid", message), again=None)
    if not queued and (refusal := snapshot.refusal(manifest, *(each.manifest for each in prepare))):
        return _blocked(snapshot, refused(refusal), again=snapshot.refused_for(refusal))
    return Decision(actions=(*prepare, Create(manifest)), recheck_seconds=snapshot.settings.refused_seconds)


def _kueue_wants_it(snapshot: Snapshot) -> bool:
    """Whether Kueue refused a RayJob without its label just now: it has put it into the namespace's default queue by itself."""
    refusal = snapshot.observed.refusal
    return refusal is not None and refusal.name == snapshot.ray_job_name and KUEUE_WANTS_IT in refusal.message


def _blocked(snapshot: Snapshot, wait: Wait, *, again: float | None) -> Decision:
    """Nothing can be made before `again` seconds have passed, or without a change.

    The phase is Pending, in which a RayJob that is not there is made, not counted as lost. One that is there, but not its trainer's
    right, is not named yet. startDeadlineSeconds counts from when the job began to wait for this: neither the pause after a failure, nor a
    queue's time, nor a suspension is in it.
    """
    draft = snapshot.draft()
    news = Event("Warning", wait.reason, wait.message)
    draft.phase = PENDING
    if not snapshot.current:
        draft.put("rayJobName", snapshot.ray_job_name)
    if draft.holds("Suspended"):
        draft.condition("Suspended", False, "Resumed", "spec.suspend is false")
    begins = snapshot.phase != PENDING or wait.reason != draft.reason("Running")
    draft.condition("Running", False, wait.reason, wait.message, anew=begins)
    left = _left_to_start(snapshot, (snapshot.now - (draft.since("Running") or snapshot.now)).total_seconds())
    if left is not None and left <= 0:
        return _never_started(snapshot, draft, wait)
    return snapshot.decision(draft, news, recheck=soonest(again, left))


# ---- suspension ------------------------------------------------------------------------------------------------------------------------


def _suspend(snapshot: Snapshot) -> Decision:
    """Take the RayJob away; its pods checkpoint within their grace period. Whatever is found of an older attempt goes too."""
    draft = snapshot.draft()
    end = _end(snapshot, snapshot.current) if snapshot.current else None
    if isinstance(end, Outcome) and end.kind is Kind.SUCCEEDED and steps_to_do(snapshot) is None:
        return _succeed(snapshot, draft)
    if draft.phase not in (SUSPENDING, SUSPENDED):
        if isinstance(end, Unsettled):
            return Decision(recheck_seconds=end.seconds)
        if not snapshot.current and draft.phase in MAY_HAVE_RUN:
            end = lost(snapshot.ray_job_name, snapshot.report)
        if isinstance(end, Outcome):
            _count(draft, end, snapshot.attempt)
            if end.kind is Kind.FAILED and (out := _out_of_attempts(snapshot, draft, end)):
                return out
    if snapshot.current:  # resumed, the job goes on with the attempt after it
        draft.put("rayJobName", snapshot.current.name)
    draft.put("startTime", None)
    draft.put("dashboardURL", None)
    pods = snapshot.holding(snapshot.pods)
    before = draft.phase
    held = ray_job_stays(snapshot.ray_jobs, snapshot.now)
    if snapshot.ray_jobs or pods:
        draft.phase = SUSPENDING
        message = held.message if held else "spec.suspend is true: the pods write a checkpoint and go"
    else:
        draft.phase = SUSPENDED
        message = "spec.suspend is true; set it to false and the job goes on from its newest checkpoint"
    news = () if draft.phase == before else (Event("Normal", draft.phase, message),)
    if held and draft.reason("Running") != held.reason:
        news = (Event("Warning", held.reason, message),)
    reason = held.reason if held else draft.phase
    draft.condition("Running", False, reason, message)
    draft.condition("Suspended", draft.phase == SUSPENDED, reason, message)
    going = GOING_SECONDS if snapshot.ray_jobs else None
    recheck = soonest(going, snapshot.until_gone(pods) if pods else None)
    return snapshot.decision(draft, *news, actions=deletions(snapshot.ray_jobs), recheck=recheck)
