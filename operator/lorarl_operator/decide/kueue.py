"""What a RayJob in a queue of Kueue waits for, and whether someone has stopped it there.

Kueue suspends the RayJob in all cases. Only its Workload says why: it was preempted and comes back by itself, an
administrator stopped it, or a limit of the queue ended it for good. A Workload that is inactive never comes back by
itself (https://kueue.sigs.k8s.io/docs/concepts/workload/#active).
"""

from __future__ import annotations

from dataclasses import dataclass

from lorarl_operator.decide.blockers import Blocker
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Evidence, Job, RayJob, Workload
from lorarl_operator.decide.reasons import Ended, Waiting

_BY_KUEUE = "DeactivatedDueTo"
_AGAIN = "To continue from its checkpoint, delete the job and apply it again."
_LIMITS = {
    "MaximumExecutionTimeExceeded": (
        Ended.QUEUE_TIME_LIMIT,
        f"{_AGAIN} Raise its label kueue.x-k8s.io/max-exec-time-seconds before that.",
    ),
    "RequeuingLimitExceeded": (
        Ended.QUEUE_GAVE_UP,
        f"{_AGAIN} Find out before that why its pods did not become ready in time (kubectl get events).",
    ),
    "AdmissionCheck": (
        Ended.QUEUE_GAVE_UP,
        f"{_AGAIN} Ask the queue's administrator about the admission check before that.",
    ),
}
"""By Kueue's cause of a deactivation: our reason, and what to do."""
_ANY_LIMIT = (Ended.QUEUE_GAVE_UP, f"{_AGAIN} Ask the queue's administrator about the limit before that.")
_STOPPED_QUEUES = {"LocalQueueStopped": "localqueue", "ClusterQueueStopped": "clusterqueue"}
_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


@dataclass(frozen=True, slots=True)
class Stop:
    """Why a Workload does not come back by itself.

    Attributes:
        ends: Why that is the end of the job; None if an administrator may start the Workload again.
    """

    message: str
    ends: Ended | None = None


def stop_of(ray_job: RayJob, evidence: Evidence | None, namespace: str) -> Stop | None:
    """Who stopped the RayJob in its queue; None if no one did, or if that is not known."""
    workload = evidence.workload if evidence else None
    if workload is None or not workload.name:
        return None
    conditions = _true(workload)
    if workload.active and "DeactivationTarget" not in conditions:
        return _stopped_queue(ray_job, workload, namespace)
    cause, message = conditions.get("DeactivationTarget") or conditions.get("Evicted", ("", ""))
    if "DeactivationTarget" in conditions or cause.startswith(_BY_KUEUE):
        reason, fix = _LIMITS.get(cause.removeprefix(_BY_KUEUE), _ANY_LIMIT)
        return Stop(sentences(f"Queue {ray_job.queue} has ended the job: {message}", fix), reason)
    problem = f"An administrator of queue {ray_job.queue} stopped the job: Workload {workload.name} is not active"
    return Stop(sentences(problem, _resumed(f"workload {workload.name} -n {namespace}")))


def _stopped_queue(ray_job: RayJob, workload: Workload, namespace: str) -> Stop | None:
    """The LocalQueue or ClusterQueue is stopped, and took back what it had admitted."""
    evicted = _true(workload).get("Evicted", ("", ""))[0]
    requeued = _true(workload).get("Requeued", ("", ""))[0]
    kind = _STOPPED_QUEUES.get(evicted)
    if kind is None or requeued == evicted.replace("Stopped", "Restarted"):
        return None
    name = f" {ray_job.queue}" if kind == "localqueue" else ""
    problem = f"An administrator stopped the {evicted.removesuffix('Stopped')}{name}, and the job with it"
    return Stop(sentences(problem, _resumed(f"{kind}{name} -n {namespace}" if name else f"{kind} NAME")))


def _resumed(what: str) -> str:
    """What starts the job again. A full stop after a command would be taken for a part of it."""
    return f"It continues when someone starts it again (kueuectl resume {what})"


def queued(ray_job: RayJob, evidence: Evidence | None, job: Job) -> Blocker:
    """What a suspended RayJob of a job waits for."""
    if not ray_job.queue:
        return Blocker(
            Waiting.RAY_JOB_SUSPENDED,
            f"RayJob {ray_job.name} was suspended, but not by Kueue, and KubeRay will not resume it. "
            f"Delete it (kubectl delete rayjob {ray_job.name} -n {job.namespace}); lorarl recreates it.",
        )
    if stop := stop_of(ray_job, evidence, job.namespace):
        suspended = job.read_spec().get("suspend") is True
        also = "spec.suspend is true too: it resumes when that is false as well." if suspended else ""
        return Blocker(Waiting.QUEUE_STOPPED, sentences(stop.message, also))
    workload = evidence.workload if evidence else None
    if workload is None:
        return _waits(ray_job)
    if not workload.name:
        return Blocker(Waiting.QUEUED, _without_workload(ray_job, dict(job.passed_labels)))
    conditions = {kind: (holds, reason, message) for kind, holds, reason, message in workload.conditions}
    reserved, reason, message = conditions.get("QuotaReserved", (False, "", ""))
    if not reserved:
        hint = "Run kubectl get localqueues to list this namespace's queues." if reason == "Inadmissible" else ""
        why = message or "Kueue has not looked at it yet"
        return Blocker(Waiting.QUEUED, sentences(f"The job waits in queue {ray_job.queue}: {why}", hint))
    admitted, _, message = conditions.get("Admitted", (False, "", ""))
    if admitted:  # What is known is older than what suspended the RayJob.
        return _waits(ray_job)
    why = message or "its admission checks are not complete"
    problem = f"The job waits in queue {ray_job.queue}, which has reserved quota, but has not admitted it yet: {why}"
    return Blocker(Waiting.QUEUED, sentences(problem))


def _waits(ray_job: RayJob) -> Blocker:
    return Blocker(Waiting.QUEUED, f"The job waits for its turn in queue {ray_job.queue}.")


def _without_workload(ray_job: RayJob, labels: dict[str, str]) -> str:
    """Kueue posts nothing about a label that it cannot follow."""
    problem = f"The job waits in queue {ray_job.queue}, but Kueue has created no Workload for RayJob {ray_job.name}"
    priority = labels.get(_PRIORITY_LABEL)
    named = f"that WorkloadPriorityClass {priority} exists (label {_PRIORITY_LABEL}), and " if priority else ""
    return sentences(problem, f"Check {named}that Kueue is running")


def _true(workload: Workload) -> dict[str, tuple[str, str]]:
    """Reason and message of the conditions that hold, by their type."""
    return {kind: (reason, message) for kind, holds, reason, message in workload.conditions if holds}
