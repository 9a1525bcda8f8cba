"""An attempt that starts again in its RayJob, and so keeps its place in a queue.

Kueue takes a RayJob's quota back when KubeRay calls it Failed. With a `backoffLimit` above its failures KubeRay calls
it Retrying instead, deletes its RayCluster, and creates another one from the same pod templates. KubeRay does so after
any failure, and at once. So an attempt starts again in place only if it was preempted, and the next one would follow
at once with the same pods. Otherwise the operator deletes the RayJob.

`status.restartsInPlace` says which of KubeRay's failures the job has counted, in the same write as its own counters. So
each is counted once, whatever is killed meanwhile. Only a training that succeeds before the operator has looked counts
none.
"""

from __future__ import annotations

from lorarl_operator.decide.decision import Decision, DeletePod, Event
from lorarl_operator.decide.faulty_nodes import faulty_nodes, to_avoid
from lorarl_operator.decide.models import RayJob
from lorarl_operator.decide.pod_ends import Outcome
from lorarl_operator.decide.recovery import has_overstayed
from lorarl_operator.decide.snapshot import Snapshot, deletions
from lorarl_operator.decide.status import Draft

_NO_PAUSE_SECONDS = 10.0
"""KubeRay and the pods need as long to be up again."""
_FOR_GOOD = frozenset({"Complete", "Failed", "ValidationFailed"})
"""Deployment statuses that a RayJob never leaves."""


def goes_on(ray_job: RayJob) -> bool:
    """Whether the RayJob can start again, or does so."""
    return ray_job.backoff_limit > 0 and not ray_job.deleted_at and ray_job.deployment_status not in _FOR_GOOD


def awaits_its_end(snapshot: Snapshot, ray_job: RayJob) -> bool:
    """Whether the job has counted an end of the RayJob that KubeRay does not know yet."""
    return ray_job.failures < snapshot.restarts_in_place


def restartable(snapshot: Snapshot, outcome: Outcome, pause: float) -> RayJob | None:
    """The RayJob if it can start again in place after this loss, which it has not counted yet; otherwise None.

    `pause`: Seconds that the next attempt would have to wait.
    """
    ray_job = snapshot.current
    if ray_job is None or not goes_on(ray_job) or pause > _NO_PAUSE_SECONDS or _avoids_more(snapshot, outcome):
        return None
    counted = snapshot.restarts_in_place
    by_kuberay = ray_job.failures > counted
    by_us = (
        ray_job.failures == counted < ray_job.backoff_limit
        and ray_job.deployment_status == "Running"
        and not ray_job.suspended
    )
    return ray_job if by_kuberay or by_us else None


def _avoids_more(snapshot: Snapshot, outcome: Outcome) -> bool:
    """Whether the next attempt must keep off a node that the pods of this one may use."""
    if not outcome.faulty_node:
        return False
    known = faulty_nodes({"faultyNodes": snapshot.faults_after(outcome)})
    return to_avoid(known, snapshot.now) != snapshot.avoided_nodes


def restart_in_place(snapshot: Snapshot, draft: Draft, ray_job: RayJob, why: Event) -> Decision:
    """Count the end of the attempt, and let KubeRay start it again."""
    counted = max(snapshot.restarts_in_place + 1, ray_job.failures)
    draft.restart(ray_job.name, counted, why.reason, why.message)
    ends = [] if ray_job.failures > snapshot.restarts_in_place else end_head(snapshot, ray_job)
    return snapshot.decision(draft, why, actions=(*deletions(snapshot.others), *ends), recheck=0)


def end_head(snapshot: Snapshot, ray_job: RayJob) -> list[DeletePod]:
    """What makes a RayJob fail that runs. A head on a lost node goes without that node's word when its time is over."""
    heads = [pod for pod in snapshot.attempt_pods if pod.role == "head"]
    overdue = {pod.uid for pod in heads} - {pod.uid for pod in snapshot.active_pods(heads)}
    return [
        DeletePod(pod.name, pod.uid, at_once=pod.uid in overdue, ray_job=ray_job.name)
        for pod in heads
        if not pod.deletion_asked_at or (pod.uid in overdue and has_overstayed(pod))
    ]
