"""An attempt whose RayJob has failed, or is made to fail, and starts again in place: see `in_place.py`."""

from __future__ import annotations

from dataclasses import replace

from lorarl_operator.decide.attempt_end import end_attempt
from lorarl_operator.decide.attempt_progress import outcome_of
from lorarl_operator.decide.blockers import GOING_SECONDS
from lorarl_operator.decide.decision import Decision
from lorarl_operator.decide.in_place import awaits_its_end, end_head, goes_on
from lorarl_operator.decide.models import RETRYING, RayJob
from lorarl_operator.decide.outcome import HEAD_GONE, Unsettled
from lorarl_operator.decide.pod_ends import Outcome
from lorarl_operator.decide.snapshot import Snapshot


def restart(snapshot: Snapshot, ray_job: RayJob) -> Decision | None:
    """What to do about a RayJob between two RayClusters; None if it has one, or if it ended as any other."""
    if not goes_on(ray_job):
        return None
    if ended := uncounted_end(snapshot, ray_job):
        match outcome_of(replace(snapshot, current=ended), ended):
            case Unsettled(seconds):
                return Decision(recheck_seconds=seconds)
            case Outcome() as outcome:
                then = replace(ray_job, cluster_name=ended.cluster_name)
                return end_attempt(replace(snapshot, current=then), outcome)
    if awaits_its_end(snapshot, ray_job) and ray_job.deployment_status == "Running":
        # KubeRay polls the head every 3 s but treats it as gone only after its grace period.
        return Decision(actions=tuple(end_head(snapshot, ray_job)), recheck_seconds=GOING_SECONDS)
    return Decision(recheck_seconds=GOING_SECONDS) if ray_job.deployment_status == RETRYING else None


def uncounted_end(snapshot: Snapshot, ray_job: RayJob) -> RayJob | None:
    """The RayJob as it was when it failed, with the RayCluster that it had then; None if that is counted."""
    if not goes_on(ray_job) or ray_job.failures <= snapshot.restarts_in_place:
        return None
    uncounted = ray_job.failures - snapshot.restarts_in_place
    since = snapshot.draft().at("attemptEndTime")
    if (ended := ray_job.last_end) and ended.failures == ray_job.failures:
        # Of several ends, one that the trainer reported as a failure counts.
        return replace(ended, deployment_status="Failed", started_at=ended.started_at if uncounted == 1 else since)
    # It was not seen. If nothing else shows the cause, it was not the training: that one would have reported it.
    elsewhere = [
        pod
        for pod in (*snapshot.pods, *snapshot.observed.departed)
        if pod.attempt == snapshot.attempt and pod.cluster != ray_job.cluster_name
    ]
    cluster = max(elsewhere, key=lambda pod: pod.created_at).cluster if elsewhere else ""
    return replace(
        ray_job,
        deployment_status="Failed",
        job_status="",
        reason="",
        message=HEAD_GONE,
        cluster_name=cluster,
        started_at=since,
        ended_at=None,
    )
