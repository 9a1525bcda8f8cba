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
    refused,
    starting,
    stays,
)
from lorarl_operator.decision import Apply, Create, Decision, DeleteJob, Event, Want
from lorarl_operator.deletion import decide_removal, finalizer_actions
from lorarl_operator.late_steps import MORE_STEPS, steps_to_do, too_late
from lorarl_operator.manifests.rayjob import ray_job as build_ray_job
from lorarl_operator.models import Observed, RayJob
from lorarl_operator.names import ray_job_name
from lorarl_operator.outcome import HEAD_GONE, Ending, Kind, Unsettled, ending, lost
from lorarl_operator.settings import Settings
from lorarl_operator.snapshot import View, deletions, look, soonest
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
    view = look(observed, now, settings)
    if view.job.deleted_at:
        return decide_removal(view)
    decision = _of_the_living(view)
    first = finalizer_actions(view)
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


def _of_the_living(view: View) -> Decision:
    if view.phase in FINISHED:
        return _finished(view)
    if view.spec.get("suspend") is True:
        return _suspend(view)
    if view.current and (end := _end(view, view.current)) and isinstance(end, Ending):
        return _end_attempt(view, end)
    if not view.current and view.phase in MAY_HAVE_RUN:
        return _end_attempt(view, lost(view.ray_job_name, view.report))
    if (left := view.left("startTime", "activeDeadlineSeconds")) is not None and left <= 0:
        limit = view.spec["activeDeadlineSeconds"]
        return _fail(
            view, view.draft(), "DeadlineExceeded", f"the job ran longer than activeDeadlineSeconds, {limit} s"
        )
    decision = _follow(view, view.current) if view.current else _make(view)
    return replace(decision, recheck_seconds=soonest(decision.recheck_seconds, left))


# ---- an attempt that is there ----------------------------------------------------------------------------------------------------------


def _end(view: View, ray_job: RayJob) -> Ending | Unsettled | None:
    return ending(ray_job, view.attempt_pods, view.departed_pods, view.report, view.now, view.settings)


def _follow(view: View, ray_job: RayJob) -> Decision:
    """Follow a RayJob that goes on; of a new one, the trainer's right comes first."""
    decision = _progress(view, ray_job)
    if view.announced or decision.status is None:
        return decision
    granted = _applicable(view.grants)
    if refusal := view.refusal(*(each.manifest for each in granted)):
        return _blocked(view, refused(refusal), again=view.refused_for(refusal))
    return replace(decision, prepare=(*granted, *decision.prepare))


def _applicable(applies: Callable[[], tuple[Apply, ...]]) -> tuple[Apply, ...]:
    """None, where the spec is not valid any more: the RayJob was made from one that was."""
    try:
        return applies()
    except ManifestError:
        return ()


def _progress(view: View, ray_job: RayJob) -> Decision:
    """Say of a RayJob that goes on how it goes."""
    end = _end(view, ray_job)
    settle = end.seconds if isinstance(end, Unsettled) else None
    draft = view.draft()
    draft.put("rayJobName", ray_job.name)
    draft.put("dashboardURL", _url(ray_job.dashboard_url))
    if draft.holds("Suspended"):
        draft.condition("Suspended", False, "Resumed", "spec.suspend is false")
    if ray_job.deployment_status in _ENDED:  # why is not known yet
        return Decision(recheck_seconds=settle)
    if ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended"}:
        return _queued(view, draft, ray_job)
    draft.start_clock()
    # A RayJob whose driver has started stays Running, though Ray's dashboard may not answer for a while.
    if ray_job.deployment_status == "Running" and (ray_job.job_status in _AT_WORK or draft.phase == RUNNING):
        news = (
            ()
            if draft.phase == RUNNING
            else (Event("Normal", RUNNING, f"attempt {view.attempt} runs: RayJob {ray_job.name}"),)
        )
        draft.phase = RUNNING
        draft.condition("Running", True, RUNNING, f"attempt {view.attempt} trains in RayJob {ray_job.name}")
        if draft.holds("Disrupted"):
            draft.condition("Disrupted", False, RUNNING, f"attempt {view.attempt} runs")
        return view.decision(draft, *news, recheck=settle)
    return _starting(view, draft, ray_job, settle)


def _queued(view: View, draft: Draft, ray_job: RayJob) -> Decision:
    """A queue holds the RayJob, or has taken its machines back: it goes on by itself, with the same RayJob, when there is room."""
    wait = queued(ray_job, view.observed.evidence)
    news = []
    if draft.phase == RUNNING:
        draft.count("preemptions")
        message = wait.message
        if ray_job.queue:
            message = f"queue {ray_job.queue} took the machines of attempt {view.attempt} back; it goes on from its checkpoint when there is room"
        draft.condition("Disrupted", True, "Preempted", message, anew=True)
        news = [Event("Warning", "Preempted", message)]
    elif draft.reason("Running") != wait.reason:
        news = [Event("Normal", wait.reason, wait.message)]
    draft.phase = PENDING
    draft.put("startTime", None)
    # Without evidence nothing new is known: what it said of the queue still holds.
    known = view.observed.evidence is not None and view.observed.evidence.workload is not None
    if known or draft.reason("Running") != wait.reason:
        draft.condition("Running", False, wait.reason, wait.message)
    age = (view.now - ray_job.created_at).total_seconds()
    return view.decision(
        draft, *news, recheck=_patience(view, age, _SLOWEST_LOOK), wants=_want(view, age, Want.WORKLOAD)
    )


def _starting(view: View, draft: Draft, ray_job: RayJob, recheck: float | None) -> Decision:
    """The RayJob is not held back, but its process does not run yet."""
    pods = view.attempt_pods
    wait = starting(view.observed, ray_job, view.clusters, pods, view.now)
    known = draft.reason("Running")
    if view.observed.evidence is None and wait.reason == STARTING_REASON and known in EVENT_REASONS:
        # What events told stays true until they are looked at again.
        wait = Wait(known, draft.message("Running"))
    # Before KubeRay has begun, a RayJob that a queue let go is as old as its wait in the queue.
    begun = ray_job.started_at or (None if ray_job.queue else ray_job.created_at)
    age = (view.now - begun).total_seconds() if begun else 0.0
    left = _left_to_start(view, age)
    if left is not None and left <= 0:
        return _never_started(view, draft, wait)
    news = []
    if not wait.stuck and draft.phase != STARTING:
        news.append(Event("Normal", STARTING, f"attempt {view.attempt} starts: RayJob {ray_job.name}"))
    if wait.stuck and wait.reason != known:
        news.append(Event("Warning", wait.reason, wait.message))
    draft.phase = PENDING if wait.stuck else STARTING
    draft.condition("Running", False, wait.reason, wait.message)
    busy = any(pod.node and not pod.ready and not pod.deletion_asked_at for pod in pods)
    look_again = _patience(view, age, _NODE_LOOK if busy else _SLOWEST_LOOK)
    again = _made_again(view) if wait.ours else ()
    return view.decision(
        draft, *news, prepare=again, recheck=soonest(recheck, look_again, left), wants=_want(view, age, Want.EVENTS)
    )


def _left_to_start(view: View, waited: float) -> float | None:
    """Seconds that are left of startDeadlineSeconds; None without it."""
    limit = whole(view.spec.get("startDeadlineSeconds"))
    return None if limit is None else limit - waited


def _never_started(view: View, draft: Draft, wait: Wait) -> Decision:
    limit = view.spec["startDeadlineSeconds"]
    return _fail(
        view, draft, "StartDeadlineExceeded", f"attempt {view.attempt} did not run within {limit} s: {wait.message}"
    )


def _made_again(view: View) -> tuple[Apply, ...]:
    """Somebody deleted what we had made: all of it is made sure of."""
    prepare = _applicable(view.prepared)
    return () if view.refusal(*(each.manifest for each in prepare)) else prepare


def _want(view: View, age: float, want: Want) -> Want | None:
    """Evidence, where something takes longer than it should. A negative age is a clock that is behind."""
    return want if age >= view.settings.stuck_seconds or age < 0 else None


def _patience(view: View, age: float, slowest: float) -> float:
    """Seconds until the next look at what is stuck: it doubles with the time that it has been so."""
    stuck = view.settings.stuck_seconds
    return stuck - age if 0 <= age < stuck else min(max(age, stuck), slowest)


def _url(address: str) -> str | None:
    if not address:
        return None
    return address if "://" in address else f"http://{address}"


# ---- the end of an attempt, and the next one -------------------------------------------------------------------------------------------


def _count(draft: Draft, end: Ending, attempt: int) -> None:
    """Count an attempt that ended."""
    if end.kind is Kind.PREEMPTED:
        draft.count("preemptions")
        draft.condition("Disrupted", True, end.reason, f"attempt {attempt}: {end.message}", anew=True)
    elif end.kind is Kind.FAILED:
        draft.count("attempts")


def _end_attempt(view: View, end: Ending) -> Decision:
    draft = view.draft()
    following = view.attempt + 1
    if end.kind is Kind.SUCCEEDED:
        if (steps := steps_to_do(view)) is None:
            return _succeed(view, draft)
        message = f"attempt {view.attempt} made the steps it knew of; trainer.steps is {steps} now, and attempt {following} makes the rest"
        return _next_attempt(view, draft, Event("Normal", MORE_STEPS, message))
    _count(draft, end, view.attempt)
    if end.kind is Kind.FAILED and (out := _out_of_attempts(view, draft, end)):
        return out
    reason = backoff.BACKING_OFF if end.kind is Kind.FAILED else backoff.reason_of_preemption(draft, view.now)
    delay = backoff.wait(reason, draft, view.settings)
    follows = f"attempt {following} follows in {delay:g} s"
    if reason == backoff.BACKING_OFF:
        follows += f" (failure {draft.counter('attempts')}, backoffLimit {whole(view.spec.get('backoffLimit'), 3)})"
    elif reason == backoff.PREEMPTED_AGAIN:
        follows += f" (preemption {draft.counter('preemptions')}, soon after the one before)"
    else:
        follows = f"attempt {following} goes on from the newest checkpoint"
    message = f"attempt {view.attempt} ended, {end.reason}: {end.message}; {follows}"
    return _next_attempt(view, draft, Event("Warning", reason, message))


def _next_attempt(view: View, draft: Draft, why: Event) -> Decision:
    draft.phase = RESTARTING
    draft.put("rayJobName", ray_job_name(view.job.name, view.attempt + 1))
    draft.put("dashboardURL", None)
    draft.condition("Running", False, why.reason, why.message, anew=True)
    return view.decision(
        draft, why, actions=deletions(view.ray_jobs), recheck=backoff.wait(why.reason, draft, view.settings)
    )


def _out_of_attempts(view: View, draft: Draft, end: Ending) -> Decision | None:
    limit = whole(view.spec.get("backoffLimit"), 3)
    if limit is None or draft.counter("attempts") <= limit:
        return None
    return _fail(view, draft, end.reason, f"attempt {view.attempt} failed, and backoffLimit is {limit}: {end.message}")


def _succeed(view: View, draft: Draft) -> Decision:
    message = f"training has ended in attempt {view.attempt}"
    draft.phase = SUCCEEDED
    draft.end_clock()
    draft.condition("Running", False, SUCCEEDED, message)
    draft.condition("Complete", True, SUCCEEDED, message)
    draft.put("rayJobName", view.ray_job_name)
    return view.decision(
        draft, Event("Normal", SUCCEEDED, message), *too_late(view), actions=deletions(view.others), recheck=0
    )


def _fail(view: View, draft: Draft, reason: str, message: str) -> Decision:
    draft.phase = FAILED
    draft.end_clock()
    draft.condition("Running", False, FAILED, message)
    draft.condition("Failed", True, reason, message)
    return view.decision(draft, Event("Warning", reason, message), actions=deletions(_live(view)), recheck=0)


def _live(view: View) -> list[RayJob]:
    """RayJobs that a finished job does not need: all but the last one, where KubeRay lets its workers go and keeps its head for the logs.

    KubeRay has no rule for a job that was stopped, and leaves workers whose head is gone alone for ever.
    """
    return [each for each in view.ray_jobs if each is not view.current or not _cleans_up(each)]


def _cleans_up(ray_job: RayJob) -> bool:
    if ray_job.deployment_status == "Complete":
        return ray_job.job_status == "SUCCEEDED"
    return ray_job.deployment_status == "Failed" and ray_job.message != HEAD_GONE


def _finished(view: View) -> Decision:
    left = view.left("completionTime", "ttlSecondsAfterFinished")
    if left is not None and left <= 0:
        return Decision(actions=(DeleteJob(),))
    return view.decision(view.draft(), *too_late(view), actions=deletions(_live(view)), recheck=left)


def _make(view: View) -> Decision:
    """Make the attempt's RayJob, when nothing of another attempt works any more and its time has come."""
    going = deletions(view.others)
    if view.name_taken:
        return _blocked(view, name_taken("RayJob", view.ray_job_name), again=view.settings.refused_briefly_seconds)
    if view.others:
        if (wait := stays(view.others, view.now)) and backoff.pause(view.draft(), view.now, view.settings) <= 0:
            return _blocked(view, wait, again=view.settings.refused_seconds)
        return Decision(actions=tuple(going), recheck_seconds=GOING_SECONDS)
    if pods := view.training():
        return Decision(recheck_seconds=view.until_gone(pods))
    if (pause := backoff.pause(view.draft(), view.now, view.settings)) > 0:
        return Decision(recheck_seconds=pause)
    try:
        prepare = view.prepared() if view.announced else view.needs()
        queued = True if _kueue_wants_it(view) else None
        manifest = build_ray_job(view.job, checked_spec(view.job), view.attempt, view.settings, queued=queued)
    except ManifestError as error:
        message = f"{error}; correct it and apply the job anew (what cannot be changed needs a new job)"
        return _blocked(view, Wait("Invalid", message), again=None)
    if not queued and (refusal := view.refusal(manifest, *(each.manifest for each in prepare))):
        return _blocked(view, refused(refusal), again=view.refused_for(refusal))
    return Decision(actions=(*prepare, Create(manifest)), recheck_seconds=view.settings.refused_seconds)


def _kueue_wants_it(view: View) -> bool:
    """Whether Kueue refused a RayJob without its label just now: it has put it into the namespace's default queue by itself."""
    refusal = view.observed.refusal
    return refusal is not None and refusal.name == view.ray_job_name and KUEUE_WANTS_IT in refusal.message


def _blocked(view: View, wait: Wait, *, again: float | None) -> Decision:
    """Nothing can be made before `again` seconds have passed, or without a change.

    The phase is Pending, in which a RayJob that is not there is made, not counted as lost. One that is there, but not its trainer's
    right, is not named yet. startDeadlineSeconds counts from when the job began to wait for this: neither the pause after a failure, nor a
    queue's time, nor a suspension is in it.
    """
    draft = view.draft()
    news = Event("Warning", wait.reason, wait.message)
    draft.phase = PENDING
    if not view.current:
        draft.put("rayJobName", view.ray_job_name)
    if draft.holds("Suspended"):
        draft.condition("Suspended", False, "Resumed", "spec.suspend is false")
    begins = view.phase != PENDING or wait.reason != draft.reason("Running")
    draft.condition("Running", False, wait.reason, wait.message, anew=begins)
    left = _left_to_start(view, (view.now - (draft.since("Running") or view.now)).total_seconds())
    if left is not None and left <= 0:
        return _never_started(view, draft, wait)
    return view.decision(draft, news, recheck=soonest(again, left))


# ---- suspension ------------------------------------------------------------------------------------------------------------------------


def _suspend(view: View) -> Decision:
    """Take the RayJob away; its pods checkpoint within their grace period. Whatever is found of an older attempt goes too."""
    draft = view.draft()
    end = _end(view, view.current) if view.current else None
    if isinstance(end, Ending) and end.kind is Kind.SUCCEEDED and steps_to_do(view) is None:
        return _succeed(view, draft)
    if draft.phase not in (SUSPENDING, SUSPENDED):
        if isinstance(end, Unsettled):
            return Decision(recheck_seconds=end.seconds)
        if not view.current and draft.phase in MAY_HAVE_RUN:
            end = lost(view.ray_job_name, view.report)
        if isinstance(end, Ending):
            _count(draft, end, view.attempt)
            if end.kind is Kind.FAILED and (out := _out_of_attempts(view, draft, end)):
                return out
    if view.current:  # resumed, the job goes on with the attempt after it
        draft.put("rayJobName", view.current.name)
    draft.put("startTime", None)
    draft.put("dashboardURL", None)
    pods = view.holding(view.pods)
    before = draft.phase
    held = stays(view.ray_jobs, view.now)
    if view.ray_jobs or pods:
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
    going = GOING_SECONDS if view.ray_jobs else None
    recheck = soonest(going, view.until_gone(pods) if pods else None)
    return view.decision(draft, *news, actions=deletions(view.ray_jobs), recheck=recheck)
