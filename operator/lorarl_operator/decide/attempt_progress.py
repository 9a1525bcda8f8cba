"""A RayJob that exists and has not ended: what the status says about it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from lorarl_operator.decide.attempt_end import fail
from lorarl_operator.decide.attempt_queue import is_stopped, once_asked
from lorarl_operator.decide.attempt_start import applicable, blocked, never_started, resume, start_deadline
from lorarl_operator.decide.blockers import EVENT_REASONS, Blocker, refused, starting
from lorarl_operator.decide.changed_while_waiting import replace_changed
from lorarl_operator.decide.decision import Action, Apply, Decision, Event, Want
from lorarl_operator.decide.drain import follow_drain, next_look, unguarded, wants
from lorarl_operator.decide.elastic import node_range, scaled_cluster
from lorarl_operator.decide.kept_image import image_in_use
from lorarl_operator.decide.kueue import queued
from lorarl_operator.decide.messages import resumes, sentences
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.node_changes import (
    ask_for_all,
    ask_for_fewer,
    follow_asked,
    follow_nodes,
    left_to_start_short,
    refused_change,
    start_short,
)
from lorarl_operator.decide.outcome import Report, Unsettled, attempt_outcome, shows_a_loss
from lorarl_operator.decide.partial_placement import give_back, left_to_place
from lorarl_operator.decide.pod_ends import Outcome, ended
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.recovery import in_use
from lorarl_operator.decide.scale_up import scaling_up
from lorarl_operator.decide.snapshot import Snapshot, soonest
from lorarl_operator.decide.spare_pods import lingering_spares, spares_asked, spares_news, until_missing
from lorarl_operator.decide.status import PENDING, RUNNING, STARTING, Draft
from lorarl_operator.decide.valid_spec import whole_number

_ENDED = frozenset({"Complete", "Failed"})
_AT_WORK = frozenset({"RUNNING", "SUCCEEDED", "FAILED", "STOPPED"})
"""Ray's states of a job whose process has started."""
_SLOWEST_LOOK = 120.0
_SILENT_SECONDS = 300.0
"""How much longer a training may report nothing on a node of which Kubernetes hears nothing either.

Pods leave such a node after a minute, unless their tolerations say when, and that loss ends the attempt.
"""
_NODE_LOOK = 20.0
"""Seconds between looks at the Events of a pod that a node is starting. There the kubelet says what it lacks."""


def outcome_of(snapshot: Snapshot, ray_job: RayJob) -> Outcome | Unsettled | None:
    """How the attempt of this RayJob ended; None while it continues."""
    pods, departed = (in_use(each, snapshot.workers) for each in (snapshot.attempt_pods, snapshot.departed_pods))
    found = attempt_outcome(
        ray_job, pods, departed, snapshot.lost_early, _report_of(snapshot, ray_job), snapshot.now, snapshot.settings
    )
    left = _left_to_progress(snapshot, ray_job)
    return found or (_stalled(snapshot) if left is not None and left <= 0 else None)


def _report_of(snapshot: Snapshot, ray_job: RayJob) -> Report | None:
    """The trainer's report, with what the cluster shows of the loss that it may speak of."""
    if snapshot.report is None:
        return None
    pods = (*snapshot.attempt_pods, *snapshot.all_departed)
    running_since = snapshot.draft().since("Running") if snapshot.phase == RUNNING else None
    is_shown = snapshot.recovering_since is not None or shows_a_loss(ray_job, pods, running_since)
    return replace(snapshot.report, is_shown=is_shown)


def _left_to_progress(snapshot: Snapshot, ray_job: RayJob) -> float | None:
    """Seconds left of progressDeadlineSeconds; None without it, and while the attempt is not running."""
    limit = whole_number(snapshot.spec.get("progressDeadlineSeconds"))
    runs = snapshot.phase == RUNNING and ray_job.deployment_status == "Running" and not ray_job.suspended
    began = snapshot.draft().since("Running") if runs else None
    if limit is None or began is None or snapshot.recovering_since:
        return None
    news = max(began, snapshot.job.reported_at or began)
    lost = _SILENT_SECONDS if any(pod.silent for pod in snapshot.attempt_pods) else 0.0
    return limit + lost - (snapshot.now - news).total_seconds()


def _stalled(snapshot: Snapshot) -> Outcome:
    """A running attempt that reports nothing: a kernel, a store or a collective that hangs.

    With several nodes nothing says which of them is at fault.
    """
    nodes = {pod.node for pod in snapshot.attempt_pods if pod.role == "worker" and pod.node}
    limit = snapshot.spec["progressDeadlineSeconds"]
    step = snapshot.status.get("step", 0)
    message = f"The training has reported nothing for progressDeadlineSeconds, {limit} s, since step {step}."
    return ended(Ended.STALLED, message, faulty_node=nodes.pop() if len(nodes) == 1 else "")


def follow(snapshot: Snapshot, ray_job: RayJob) -> Decision:
    """Report a RayJob that has not ended. The trainer of a new one gets its permission first."""
    if not ray_job.runs_here:
        return _sent_away(snapshot, ray_job)
    decision = _report(snapshot, ray_job)
    if snapshot.attempt_is_recorded or decision.status is None:
        return decision
    grants = applicable(snapshot.grants)
    if refusal := snapshot.refusal(*(each.manifest for each in grants)):
        return blocked(snapshot, refused(refusal), again=snapshot.retry_seconds(refusal))
    return replace(decision, prepare=(*grants, *decision.prepare))


def _sent_away(snapshot: Snapshot, ray_job: RayJob) -> Decision:
    """Fail a job whose RayJob Kueue copies to another cluster. Its pods could not start there, and would hold quota."""
    message = (
        f"Queue {ray_job.queue} sends RayJob {ray_job.name} to other clusters (spec.managedBy: {ray_job.managed_by}), "
        "but not what its pods need: ConfigMap, ServiceAccount and Secrets. Delete the job, and apply it with a queue "
        "whose ClusterQueue has no admission check of MultiKueue, or apply it in a cluster to which they go."
    )
    return fail(snapshot, snapshot.draft(), Ended.MULTI_KUEUE, message)


def _report(snapshot: Snapshot, ray_job: RayJob) -> Decision:
    outcome = outcome_of(snapshot, ray_job)
    settle = outcome.seconds if isinstance(outcome, Unsettled) else None
    draft = snapshot.draft()
    draft.put("rayJobName", ray_job.name)
    draft.put("dashboardURL", _url(ray_job.dashboard_url))
    draft.put("waitingSince", None)
    draft.put("restartsInPlace", snapshot.restarts_in_place or None)
    resume(draft)
    if ray_job.deployment_status in _ENDED:  # The cause is not known yet.
        return Decision(recheck_seconds=settle)
    is_refused = ray_job.is_refused and ray_job.queue != ""
    held = not is_refused and (ray_job.suspended or ray_job.deployment_status in {"Suspending", "Suspended"})
    # A RayJob whose driver has started stays Running, even if Ray's dashboard does not answer for a while.
    at_work = ray_job.deployment_status == "Running" and (ray_job.job_status in _AT_WORK or draft.phase == RUNNING)
    runs = draft.phase == RUNNING or (at_work and not held)
    if not (runs or is_stopped(snapshot)) and (decision := replace_changed(snapshot, draft, ray_job)):
        return once_asked(snapshot, decision)
    if held:
        return _queued(snapshot, draft, ray_job)
    if not ray_job.suspended:
        draft.start_clock()
    if at_work:
        return _running(snapshot, draft, ray_job, settle)
    return _starting(snapshot, draft, ray_job, settle)


def _running(snapshot: Snapshot, draft: Draft, ray_job: RayJob, settle: float | None) -> Decision:
    message = f"Attempt {snapshot.attempt} is training in RayJob {ray_job.name}."
    events = follow_asked(snapshot, draft, ray_job)
    events += [] if draft.phase == RUNNING else [Event("Normal", News.RUNNING, message)]
    draft.phase = RUNNING
    draft.put("requestedNodes", None)
    if snapshot.recovering_since:
        draft.put("recoveringSince", None)
        draft.count("recoveries")
        step = snapshot.status.get("resumedFromStep", 0)
        events.append(Event("Normal", News.RECOVERED, f"Attempt {snapshot.attempt} continues after step {step}."))
    # Pods of environments may have an image of the user's.
    of_lorarl = [pod for pod in snapshot.attempt_pods if pod.role != "environment" and not pod.deletion_asked_at]
    if image := image_in_use(of_lorarl):
        draft.put("trainerImage", image)
    nodes, changes = follow_nodes(snapshot, draft)
    message, events = sentences(message, nodes), events + changes
    for reason, more in (
        (News.SCALED, _more_workers(snapshot)),
        (News.EVICTION_UNGUARDED, unguarded(snapshot)),
        *spares_news(snapshot),
    ):
        if more and more not in draft.message("Running"):
            events.append(Event("Warning", reason, more))
        message = sentences(message, more)
    events += follow_drain(snapshot, draft)
    draft.condition("Running", True, News.RUNNING, message, exact=bool(nodes))
    if draft.is_true("Disrupted"):
        draft.condition("Disrupted", False, News.RUNNING, f"Attempt {snapshot.attempt} is running.")
    gone, until_gone = lingering_spares(snapshot)
    left = _left_to_progress(snapshot, ray_job)
    recheck = soonest(settle, left, next_look(snapshot), until_gone, until_missing(snapshot))
    actions: list[Action] = [*ask_for_all(snapshot, ray_job), *gone]
    return snapshot.decision(draft, *events, actions=actions, recheck=recheck, wants=wants(snapshot))


def _more_workers(snapshot: Snapshot) -> str:
    """What a person did who gave the RayCluster more workers than the job has nodes; empty if no one did."""
    nodes = node_range(snapshot.spec).most
    used = max(nodes, len(snapshot.workers.pods) if snapshot.workers else 0)
    settled = timedelta(seconds=snapshot.settings.stuck_seconds)
    workers = [
        pod
        for pod in snapshot.attempt_pods
        if pod.role == "worker" and not pod.deletion_asked_at and snapshot.now - pod.created_at > settled
    ]
    # KubeRay replaces a pod that has ended, and one on a lost node is deleted later.
    if len([pod for pod in workers if not pod.silent and pod.phase in {"Pending", "Running"}]) <= used:
        return ""
    return (
        f"RayCluster {workers[0].cluster} has more worker pods than cluster.nodes, {nodes}: someone scaled it. "
        f"The others hold their machines unused. Set its workerGroupSpecs[0].replicas to {nodes}."
    )


def _queued(snapshot: Snapshot, draft: Draft, ray_job: RayJob) -> Decision:
    """A RayJob that a queue holds, or whose machines a queue took back. It resumes by itself when there is room."""
    if fewer := ask_for_fewer(snapshot, draft, ray_job):
        return fewer
    blocker = queued(ray_job, snapshot.observed.evidence, snapshot.job)
    # Without evidence there is no news: the queue's last message still holds.
    has_news = snapshot.observed.evidence is not None and snapshot.observed.evidence.workload is not None
    if not has_news and is_stopped(snapshot):
        blocker = Blocker(Waiting.QUEUE_STOPPED, draft.message("Running"))
    events = []
    if draft.phase == RUNNING:
        if snapshot.recovering_since is None:  # Otherwise the loss for which the queue does so is counted.
            draft.count("preemptions")
        message = blocker.message
        if ray_job.queue and blocker.reason != Waiting.QUEUE_STOPPED:
            message = (
                f"Queue {ray_job.queue} took back the machines of attempt {snapshot.attempt}. "
                f"The attempt {resumes(snapshot.spec)} when there is room."
            )
        reason = Ended.QUEUE_STOPPED if blocker.reason == Waiting.QUEUE_STOPPED else Ended.PREEMPTED
        draft.condition("Disrupted", True, reason, message)
        events = [Event("Warning", reason, message)]
    elif draft.reason("Running") != blocker.reason:
        events = [
            Event("Warning" if blocker.reason == Waiting.QUEUE_STOPPED else "Normal", blocker.reason, blocker.message)
        ]
    events += follow_asked(snapshot, draft, ray_job)
    draft.phase = PENDING
    draft.put("gpus", snapshot.gpus)
    draft.put("startTime", None)
    if has_news or draft.reason("Running") != blocker.reason:
        draft.condition("Running", False, blocker.reason, blocker.message)
    age = (snapshot.now - ray_job.created_at).total_seconds()
    recheck, wants = _next_look(snapshot, age, _SLOWEST_LOOK), _want(snapshot, age, Want.WORKLOAD)
    return snapshot.decision(draft, *events, recheck=recheck, wants=wants)


def _starting(snapshot: Snapshot, draft: Draft, ray_job: RayJob, settle: float | None) -> Decision:
    """A RayJob that no queue holds, and whose process does not run yet."""
    pods = snapshot.attempt_pods
    blocker = starting(snapshot.observed, ray_job, snapshot.clusters, pods, snapshot.lost_early, snapshot.now)
    if blocker.reason == Waiting.UNSCHEDULABLE and (avoided := snapshot.avoided_nodes):
        hint = f"lorarl avoids {', '.join(avoided)}: see status.faultyNodes."
        blocker = replace(blocker, message=sentences(blocker.message, hint))
    known = draft.reason("Running")
    if snapshot.observed.evidence is None and blocker.reason == Waiting.STARTING and known in EVENT_REASONS:
        # What the Events said holds until they are read again.
        blocker = Blocker(known, draft.message("Running"))
    blocker = scaling_up(
        blocker, Blocker(known, draft.message("Running")), pods, snapshot.observed.evidence, snapshot.now
    )
    # If a queue let the RayJob go and KubeRay has not begun yet, the RayJob's age is its time in the queue.
    waits_in_queue = ray_job.queue and not ray_job.is_refused
    began = ray_job.started_at or (None if waits_in_queue else ray_job.created_at)
    age = (snapshot.now - began).total_seconds() if began else 0.0
    limit = start_deadline(snapshot)
    left = _left_of_default(snapshot) if limit is None else limit - age
    if left is not None and left <= 0:
        return never_started(snapshot, draft, blocker, limit or snapshot.settings.start_deadline_seconds)
    left_alone = left_to_start_short(snapshot, ray_job)
    scale = start_short(snapshot, ray_job) if left_alone is not None and left_alone <= 0 else ()
    if scale and not blocker.stuck and str(known) == Waiting.UNSCHEDULABLE:
        # The pods that wait are going. Why they waited is reported once the RayCluster has fewer.
        blocker = Blocker(known, draft.message("Running"))
    if refusal := refused_change(snapshot, "does not start on fewer nodes"):
        blocker = replace(blocker, message=sentences(blocker.message, refusal))
    left_to_wait = None if scale else left_to_place(snapshot, ray_job, blocker)
    if left_to_wait is not None and left_to_wait <= 0:
        return give_back(snapshot, draft, blocker)
    events = follow_asked(snapshot, draft, ray_job)
    if not blocker.stuck and draft.phase != STARTING:
        message = f"Attempt {snapshot.attempt} is starting in RayJob {ray_job.name}."
        events.append(Event("Normal", Waiting.STARTING, message))
    if blocker.stuck and blocker.reason != known:
        events.append(Event("Warning", blocker.reason, blocker.message))
    draft.phase = PENDING if blocker.stuck else STARTING
    draft.put("gpus", snapshot.gpus)
    draft.condition("Running", False, blocker.reason, blocker.message)
    node_is_busy = any(pod.node and not pod.ready and not pod.deletion_asked_at for pod in pods)
    next_look = _next_look(snapshot, age, _NODE_LOOK if node_is_busy else _SLOWEST_LOOK)
    prepare = _recreated(snapshot) if blocker.ours else ()
    until_short = snapshot.settings.refused_seconds if scale else left_alone
    recheck, wants = soonest(settle, next_look, left, left_to_wait, until_short), _want(snapshot, age, Want.EVENTS)
    return snapshot.decision(draft, *events, prepare=prepare, actions=scale, recheck=recheck, wants=wants)


def _left_of_default(snapshot: Snapshot) -> float | None:
    """Seconds left to an attempt without startDeadlineSeconds that has all its machines; None while it waits for some.

    A pod that has no node yet may wait for other jobs or for an autoscaler, as long as that takes.
    """
    limit = snapshot.settings.start_deadline_seconds
    pods = [pod for pod in snapshot.attempt_pods if not pod.deletion_asked_at]
    cluster = scaled_cluster(snapshot.clusters)
    asked = cluster.replicas if cluster else node_range(snapshot.spec).most
    if not limit or len(pods) <= asked + sum(spares_asked(snapshot).values()) or not all(pod.node for pod in pods):
        return None
    return limit - (snapshot.now - max(pod.scheduled_at or pod.created_at for pod in pods)).total_seconds()


def _recreated(snapshot: Snapshot) -> tuple[Apply, ...]:
    """All that we had created, because someone deleted a part of it."""
    prepare = applicable(snapshot.prepared)
    return () if snapshot.refusal(*(each.manifest for each in prepare)) else prepare


def _want(snapshot: Snapshot, age: float, want: Want) -> Want | None:
    """The evidence to fetch if something takes longer than it should. A negative age is a clock that is behind."""
    return want if age >= snapshot.settings.stuck_seconds or age < 0 else None


def _next_look(snapshot: Snapshot, age: float, slowest: float) -> float:
    """Seconds until the next look at a stuck job. They double with the time that it has been stuck."""
    stuck = snapshot.settings.stuck_seconds
    return stuck - age if 0 <= age < stuck else min(max(age, stuck), slowest)


def _url(address: str) -> str | None:
    if not address:
        return None
    return address if "://" in address else f"http://{address}"
