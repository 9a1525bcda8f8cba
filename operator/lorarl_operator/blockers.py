"""Why an attempt does not run yet, and what a user can do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lorarl_api.faults import redacted
from lorarl_operator.models import Evidence, Job, KubeEvent, Observed, Pod, RayCluster, RayJob, Refusal
from lorarl_operator.names import access_name

STARTING_REASON = "Starting"
EVENT_REASONS = frozenset(
    {"SecretMissing", "ConfigMapMissing", "ServiceAccountMissing", "VolumeNotMounted", "NodeNotReady"}
    | {"PodRefused", "QuotaExceeded", "NameTaken"}
)
"""Reasons that only events may tell; without a look at them they are neither there nor gone."""
_IMAGE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "RegistryUnavailable",
        "ImageInspectError",
    }
)
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_MISSING = re.compile(r'(secret|configmap|serviceaccount) "([^"]+)" not found', re.IGNORECASE)
KUEUE_WANTS_IT = "a kueue managed job should delete the cluster after finishing"
"""Kueue's webhook, of a RayJob with deletion rules."""
_QUOTA = re.compile("exceeded quota|status unknown for quota")
_MARKER = re.compile(r"^Failed\w+\n")
_POD_NAME = re.compile(r'pods? "[^"]*"', re.IGNORECASE)
_FRESH = timedelta(seconds=150)
"""Kubelet repeats what is still wrong every two minutes; what is older may have been mended."""
_SUBMITTER_TAKEN = re.compile(r'jobs\.batch "([^"]+)" already exists')
"""With K8sJobMode KubeRay makes a Job with the RayJob's name."""
_NO_KUBERAY_AFTER = timedelta(seconds=10)
GOING_SECONDS = 20.0
"""How long a RayJob may take to go before its finalizers are named: KubeRay stops its job first."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What an attempt waits for.

    Attributes:
        stuck: Whether it stands still, so that somebody or something must act: then the phase is Pending, else Starting.
        ours: Whether an object that we applied is missing: applying it again mends it.
    """

    reason: str
    message: str
    stuck: bool = True
    ours: bool = False


def queued(ray_job: RayJob, evidence: Evidence | None) -> Wait:
    """What a RayJob that is suspended waits for."""
    if not ray_job.queue:
        return Wait(
            "RayJobSuspended",
            f"RayJob {ray_job.name} was suspended by something that is no queue of Kueue's, which KubeRay does not take back; "
            "delete it (kubectl delete rayjob), and it is made again",
        )
    if evidence is None or evidence.workload is None:
        return Wait("Queued", f"waits for its turn in queue {ray_job.queue}")
    if not evidence.workload.name:
        return Wait(
            "Queued",
            f"waits in queue {ray_job.queue}, but Kueue has made no Workload of RayJob {ray_job.name}: ask whether Kueue is running",
        )
    conditions = {kind: (holds, reason, message) for kind, holds, reason, message in evidence.workload.conditions}
    reserved, reason, message = conditions.get("QuotaReserved", (False, "", ""))
    if not reserved:
        hint = "" if reason != "Inadmissible" else "; kubectl get localqueues shows the queues of this namespace"
        return Wait("Queued", f"waits in queue {ray_job.queue}: {message or 'Kueue has not looked at it yet'}{hint}")
    _, _, message = conditions.get("Admitted", (False, "", ""))
    return Wait(
        "Queued",
        f"queue {ray_job.queue} has reserved its quota; it waits to be admitted: {message or 'for admission checks'}",
    )


def no_kuberay(ray_job: RayJob, namespace: str, began: datetime | None, now: datetime) -> Wait | None:
    """A RayJob that KubeRay does not take up, nor any other since (`began`)."""
    # With a queue its age says nothing: it may just have been let go.
    if (
        ray_job.deployment_status
        or ray_job.queue
        or now - max(ray_job.created_at, began or ray_job.created_at) < _NO_KUBERAY_AFTER
    ):
        return None
    return Wait(
        "NoKubeRay",
        f"KubeRay does not take up RayJob {ray_job.name}; ask whether its operator is running (kubectl get deployments -A | grep kuberay) "
        f"and watches namespace {namespace}",
    )


def ray_job_stays(ray_jobs: Sequence[RayJob], now: datetime) -> Wait | None:
    """A RayJob that was deleted and does not go: the next attempt, and a suspension, wait for it."""
    found = next(
        (each for each in ray_jobs if each.deleted_at and (now - each.deleted_at).total_seconds() >= GOING_SECONDS),
        None,
    )
    if found is None:
        return None
    return Wait(
        "RayJobStays",
        f"RayJob {found.name} is being deleted, but its finalizers hold it: {', '.join(found.finalizers) or 'none'}; ask whether KubeRay's "
        "operator is running (ray.io/...), or whoever set the finalizer",
    )


def starting(
    observed: Observed, ray_job: RayJob, clusters: Sequence[RayCluster], pods: Sequence[Pod], now: datetime
) -> Wait:
    """What a RayJob that is not suspended waits for: the first of what is wrong, from the RayJob down to its containers."""
    job, evidence = observed.job, observed.evidence
    found = _refused_by_kuberay(ray_job) or no_kuberay(ray_job, job.namespace, observed.kuberay_began, now)
    if not found:
        found = next(
            (_creation_failed(job, each.replica_failure_message) for each in clusters if each.replica_failure_message),
            None,
        )
    found = found or next((wait for pod in pods if (wait := _of_a_pod(job, pod))), None)
    found = found or _of_events(job, pods, evidence, now)
    if found:
        return found
    if ray_job.deployment_status == "Running":
        return Wait(STARTING_REASON, "the pods are ready; the training process starts", stuck=False)
    return Wait(STARTING_REASON, f"KubeRay brings up the pods of RayJob {ray_job.name}", stuck=False)


def refused(refusal: Refusal) -> Wait:
    """What the API server refused to make."""
    message = redacted(refusal.message)
    if refusal.reason == "AlreadyExists":
        return name_taken(refusal.kind, refusal.name)
    if refusal.reason == "NamespaceTerminating":
        return Wait("NamespaceTerminating", "the namespace is being deleted")
    if _QUOTA.search(message):
        return Wait(
            "QuotaExceeded",
            f"{refusal.kind} {refusal.name} does not fit the namespace's ResourceQuota: {message}; {_QUOTA_HINT}",
        )
    if refusal.kind == "RayJob" and refusal.code == 404:
        return Wait("NoKubeRay", f"the cluster knows no RayJobs ({message}); install KubeRay 1.6")
    reason = "RayJobRefused" if refusal.kind == "RayJob" else "ObjectRefused"
    hint = (
        "correct cluster.podTemplateOverrides in a new job, if they are at fault"
        if refusal.kind == "RayJob"
        else "see the operator's rights"
        if refusal.code == 403
        else "correct what it names, in a new job"
    )
    if "kueue" in message.lower():
        hint = "label the LoRARLJob with kueue.x-k8s.io/queue-name, so that lorarl makes the RayJob as Kueue wants it"
    return Wait(reason, f"the API server refuses {refusal.kind} {refusal.name}: {message}; {hint}. It is tried again")


def name_taken(kind: str, name: str) -> Wait:
    """An object of somebody else has the name that ours needs."""
    return Wait(
        "NameTaken",
        f"{kind} {name} is there already and belongs to something else; delete it, or apply this job under another name "
        "(what belonged to a deleted job of this name goes by itself in a moment)",
    )


_KUBELET_IS_BUSY = re.compile(r"failed to sync (configmap|secret) cache: timed out")
"""What it says of an object that is there, and that the API server was slow to bring."""
_QUOTA_HINT = "ask for less in cluster, or wait until others end (kubectl describe quota)"


def _refused_by_kuberay(ray_job: RayJob) -> Wait | None:
    if ray_job.deployment_status != "ValidationFailed":
        return None
    return Wait(
        "RayJobRefused",
        f"KubeRay refuses RayJob {ray_job.name}: {ray_job.message}; correct the job (cluster.podTemplateOverrides, if they are at fault) "
        "and apply it anew; if somebody changed the RayJob, delete it, and it is made again",
    )


def _creation_failed(job: Job, message: str) -> Wait:
    """A pod that the API server did not let KubeRay make; its name is a new one with each try."""
    message = _POD_NAME.sub("its pod", redacted(_MARKER.sub("", message)))
    if _QUOTA.search(message):
        return Wait("QuotaExceeded", f"{message}; {_QUOTA_HINT}")
    if missing := _missing(job, message):
        return missing
    if taken := _SUBMITTER_TAKEN.search(message):
        return name_taken("Job", taken[1])
    if "violates PodSecurity" in message:
        hint = "KubeRay's own submitter has no security context: set cluster.submissionMode to K8sJobMode or HTTPMode"
        if "ray-job-submitter" not in message:
            hint = "the namespace forbids what cluster.rdma or cluster.podTemplateOverrides ask for"
        return Wait("PodRefused", f"{message}; {hint}")
    return Wait("PodRefused", f"{message}; correct what it names")


def _of_a_pod(job: Job, pod: Pod) -> Wait | None:
    if pod.deletion_asked_at:
        return None
    if pod.unschedulable:
        hint = "free or add such nodes, or ask for less in cluster (gpusPerNode, nodes, nodeSelector, tolerations)"
        return Wait("Unschedulable", f"no node for {pod.role} pod {pod.name}: {pod.unschedulable}; {hint}")
    for container in pod.containers:
        if container.exit_code is not None:
            continue
        message = redacted(container.message)
        if container.reason in _IMAGE:
            hint = "correct cluster.image, or name a Secret of the registry in cluster.imagePullSecrets"
            return Wait(
                "ImagePull", f"{pod.role} pod {pod.name} cannot pull its image: {message or container.reason}; {hint}"
            )
        if container.reason in _CONFIG:
            return _missing(job, message) or Wait(
                "ContainerRefused",
                f"container {container.name} of {pod.role} pod {pod.name} cannot be made: {message or container.reason}; correct the image "
                "or cluster.podTemplateOverrides",
            )
    if pod.gated:
        return Wait(
            "SchedulingGated", f"{pod.role} pod {pod.name} is held back by a scheduling gate; see the queue that set it"
        )
    return None


def _of_events(job: Job, pods: Sequence[Pod], evidence: Evidence | None, now: datetime) -> Wait | None:
    if evidence is None:
        return None
    waiting = {pod.name: pod for pod in pods if pod.phase == "Pending" and not pod.deletion_asked_at}
    for event in evidence.events:
        if now - event.last_seen > _FRESH or (
            event.reason == "FailedToCreateRayCluster" and "already exists" in event.message
        ):
            continue  # A RayCluster has a name that nobody else takes: KubeRay's cache was behind, and it made it twice.
        if event.reason.startswith("FailedToCreate") and (
            event.kind == "RayJob" or (event.kind == "RayCluster" and not pods)
        ):
            return _creation_failed(job, event.message)
        if event.kind == "Pod" and event.name in waiting and (wait := _of_a_pod_event(job, waiting[event.name], event)):
            return wait
    return None


def _of_a_pod_event(job: Job, pod: Pod, event: KubeEvent) -> Wait | None:
    message = redacted(event.message)
    if event.reason == "FailedMount" and _KUBELET_IS_BUSY.search(message):
        return None  # it asks again by itself
    if event.reason == "FailedMount":
        return _missing(job, message) or Wait(
            "VolumeNotMounted", f"{pod.role} pod {pod.name}: {message}; correct what it names"
        )
    if event.reason in {"FailedAttachVolume", "FailedCreatePodSandBox"}:
        return Wait(
            "NodeNotReady",
            f"{pod.role} pod {pod.name} on node {pod.node}: {message}; the node is at fault, not the job",
        )
    return None


def _missing(job: Job, message: str) -> Wait | None:
    """An object that a pod refers to and that is not there; its name is all that is told."""
    found = _MISSING.search(message)
    if not found:
        return None
    kind, name = found[1].lower(), found[2].rpartition("/")[2]
    ours = name == access_name(job.name)
    again = "lorarl makes it again" if ours else ""
    if kind == "secret":
        return Wait(
            "SecretMissing",
            f"Secret {name} does not exist in namespace {job.namespace}; create it, and the job goes on by itself",
        )
    if kind == "configmap":
        return Wait(
            "ConfigMapMissing",
            f"ConfigMap {name} does not exist in namespace {job.namespace}; {again or 'create it'}",
            ours=ours,
        )
    hint = again or "create it, or leave cluster.serviceAccountName out"
    return Wait(
        "ServiceAccountMissing", f"ServiceAccount {name} does not exist in namespace {job.namespace}; {hint}", ours=ours
    )
