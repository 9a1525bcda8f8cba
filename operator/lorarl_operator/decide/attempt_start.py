"""The creation of an attempt's objects, and a job that waits until they can be created."""

from __future__ import annotations

from collections.abc import Callable

from lorarl_api.faults import ManifestError
from lorarl_operator.decide import backoff
from lorarl_operator.decide.attempt_end import fail
from lorarl_operator.decide.blockers import (
    GOING_SECONDS,
    KUEUE_WANTS_IT,
    Blocker,
    left_over,
    name_taken,
    ray_job_stays,
    refused,
)
from lorarl_operator.decide.decision import Apply, Create, Decision, Event
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.node_changes import nodes_to_ask
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.snapshot import Snapshot, deletions, soonest
from lorarl_operator.decide.status import PENDING, Draft
from lorarl_operator.decide.valid_spec import if_newer, whole_number
from lorarl_operator.manifests.placement import Avoided
from lorarl_operator.manifests.rayjob import ray_job as build_ray_job


def create_attempt(snapshot: Snapshot) -> Decision:
    """Create the attempt's RayJob when nothing of another attempt works and its delay has passed."""
    if snapshot.name_taken:
        # An annotation says from which generation of a job lorarl made it.
        is_left_over = any(
            each.name == snapshot.ray_job_name and not each.owner_uid and each.generation
            for each in snapshot.observed.ray_jobs
        )
        name = snapshot.ray_job_name
        blocker = left_over(name, snapshot.job.namespace) if is_left_over else name_taken("RayJob", name)
        return blocked(snapshot, blocker, again=snapshot.settings.refused_briefly_seconds)
    delay = backoff.remaining(snapshot.draft(), snapshot.now, snapshot.settings)
    if snapshot.others:
        if delay <= 0 and (stays := ray_job_stays(snapshot.others, snapshot.now)):
            return blocked(snapshot, stays, again=snapshot.settings.refused_seconds)
        return Decision(actions=tuple(deletions(snapshot.others)), recheck_seconds=GOING_SECONDS)
    if pods := snapshot.training_pods():
        return Decision(recheck_seconds=snapshot.until_gone(pods))
    if delay > 0:
        return Decision(recheck_seconds=delay)
    return _create(snapshot)


def _create(snapshot: Snapshot) -> Decision:
    if fault := snapshot.observed.template_fault:
        return blocked(snapshot, Blocker(fault.reason, fault.message), again=snapshot.settings.refused_seconds)
    try:
        prepare = snapshot.prepared() if snapshot.attempt_is_recorded else snapshot.needs()
        queued = True if _kueue_wants_it(snapshot) else None
        spec = snapshot.kept_spec()
        avoided = Avoided(never=snapshot.avoided_nodes, last=snapshot.last_nodes)
        nodes = nodes_to_ask(snapshot)
        manifest = build_ray_job(
            snapshot.job, spec, snapshot.attempt, snapshot.settings, queued=queued, avoided=avoided, nodes=nodes
        )
    except ManifestError as error:
        hint = "Correct the job and apply it again. Fields that cannot be changed need a new job."
        newer = if_newer(snapshot.spec)
        # The schema that says which unknown fields only have their default may arrive later than the fields.
        again = snapshot.settings.refused_seconds if newer else None
        return blocked(snapshot, Blocker(Waiting.INVALID, sentences(str(error), newer, hint)), again=again)
    if not queued and (refusal := snapshot.refusal(manifest, *(each.manifest for each in prepare))):
        return blocked(snapshot, refused(refusal), again=snapshot.retry_seconds(refusal))
    return Decision(actions=(*prepare, Create(manifest)), recheck_seconds=snapshot.settings.refused_seconds)


def _kueue_wants_it(snapshot: Snapshot) -> bool:
    """Whether Kueue just refused a RayJob without its label.

    Kueue had put that RayJob into the namespace's default queue by itself.
    """
    refusal = snapshot.observed.refused("RayJob", {snapshot.ray_job_name})
    return refusal is not None and KUEUE_WANTS_IT in refusal.message


def applicable(applies: Callable[[], tuple[Apply, ...]]) -> tuple[Apply, ...]:
    """The applies; empty if the spec is no longer valid, although the RayJob was created from a valid one."""
    try:
        return applies()
    except ManifestError:
        return ()


def blocked(snapshot: Snapshot, blocker: Blocker, *, again: float | None) -> Decision:
    """Wait `again` seconds, or for a change if None, because nothing can be created now.

    The phase is Pending: a RayJob that is missing then is created, and not counted as lost. If the RayJob exists, but
    not its trainer's permission, the status does not name it yet. startDeadlineSeconds counts from the start of this
    wait. It includes neither the delay after a failure, nor the time in a queue, nor a suspension.
    """
    draft = snapshot.draft()
    draft.phase = PENDING
    if not snapshot.current:
        draft.put("rayJobName", snapshot.ray_job_name)
    resume(draft)
    draft.put("gpus", snapshot.gpus)
    if snapshot.phase != PENDING or blocker.reason != draft.reason("Running") or not draft.at("waitingSince"):
        draft.stamp("waitingSince")
    draft.condition("Running", False, blocker.reason, blocker.message)
    limit = start_deadline(snapshot)
    waited = (snapshot.now - (draft.at("waitingSince") or snapshot.now)).total_seconds()
    if limit is not None and waited >= limit:
        return never_started(snapshot, draft, blocker, limit)
    left = None if limit is None else limit - waited
    event = Event("Warning", blocker.reason, blocker.message)
    return snapshot.decision(draft, event, recheck=soonest(again, left))


def resume(draft: Draft) -> None:
    """End the condition Suspended."""
    if draft.is_true("Suspended"):
        draft.condition("Suspended", False, News.RESUMED, "spec.suspend is false.")


def start_deadline(snapshot: Snapshot) -> int | None:
    """The job's startDeadlineSeconds; None without it."""
    return whole_number(snapshot.spec.get("startDeadlineSeconds"))


def never_started(snapshot: Snapshot, draft: Draft, blocker: Blocker, limit: int) -> Decision:
    """Fail the job because an attempt did not run within `limit` seconds."""
    message = f"Attempt {snapshot.attempt} did not run within {limit} s. {blocker.message}"
    return fail(snapshot, draft, Ended.START_DEADLINE_EXCEEDED, message)
