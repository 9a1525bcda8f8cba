"""Why an attempt does not run yet, and what a user can do about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lorarl_api.redaction import redacted
from lorarl_operator.decide.admission import by_admission
from lorarl_operator.decide.early_losses import Loss, newest
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import Evidence, Job, KubeEvent, Observed, Pod, RayCluster, RayJob, Refusal
from lorarl_operator.decide.names import access_name
from lorarl_operator.decide.reasons import Reason, Waiting

EVENT_REASONS: frozenset[str] = frozenset(
    {Waiting.SECRET_MISSING, Waiting.CONFIG_MAP_MISSING, Waiting.SERVICE_ACCOUNT_MISSING, Waiting.VOLUME_NOT_MOUNTED}
    | {Waiting.NODE_NOT_READY, Waiting.POD_REFUSED, Waiting.QUOTA_EXCEEDED, Waiting.NAME_TAKEN}
)
"""Reasons that may be visible only in Events. Until the Events are read again, they neither hold nor end."""
KUEUE_WANTS_IT = "a kueue managed job should delete the cluster after finishing"
"""What Kueue's webhook says about a RayJob with deletion rules."""
GOING_SECONDS = 20.0
"""How long the deletion of a RayJob may take before its finalizers are reported: KubeRay stops its job first."""

_ASKED_IN = {
    "head": "cluster.head (cpus, memory, nodeSelector, tolerations).",
    "worker": "cluster (gpusPerNode, cpusPerNode, memoryPerNode, nodes, nodeSelector, tolerations).",
    "engine": "cluster (cpusPerNode, memoryPerNode, nodeSelector) or cluster.podTemplateOverrides.engine. For other "
    "rollout.separateEngines, delete the job and apply it again.",
    "environment": "cluster.environments (replicas, cpus, memory, nodeSelector, tolerations).",
}
"""Where a job asks for what a pod of each role needs."""
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
_QUOTA = re.compile("exceeded quota|status unknown for quota")
_QUOTA_HINT = "Ask for less in cluster, or wait until other jobs end (kubectl describe quota)."
_MARKER = re.compile(r"^Failed\w+\n")
_POD_NAME = re.compile(r'pods? "[^"]*"', re.IGNORECASE)
_FRESH = timedelta(seconds=150)
"""The kubelet repeats an unsolved problem every two minutes. An older Event may report a solved one."""
_SUBMITTER_TAKEN = re.compile(r'jobs\.batch "([^"]+)" already exists')
"""With K8sJobMode KubeRay creates a Job with the RayJob's name."""
_KUBELET_IS_BUSY = re.compile(r"failed to sync (configmap|secret) cache: timed out")
"""What the kubelet says about an object that exists, but that the API server was slow to send."""
_NO_KUBERAY_AFTER = timedelta(seconds=10)
_GATED_AFTER = timedelta(seconds=10)
"""Kueue's own gate for a topology lasts a second after each start."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """What an attempt waits for.

    Attributes:
        stuck: Whether someone or something must act. Then the phase is Pending, otherwise Starting.
        ours: Whether an object that we applied is missing. Applying it again fixes that.
    """

    reason: Reason
    message: str
    stuck: bool = True
    ours: bool = False


def no_kuberay(ray_job: RayJob, namespace: str, began: datetime | None, now: datetime) -> Blocker | None:
    """A RayJob that KubeRay does not start, although it has started no other one since (`began`)."""
    # With a queue the RayJob's age means nothing: the queue may just have admitted it.
    if (
        ray_job.deployment_status
        or ray_job.queue
        or now - max(ray_job.created_at, began or ray_job.created_at) < _NO_KUBERAY_AFTER
    ):
        return None
    return Blocker(
        Waiting.NO_KUBERAY,
        f"KubeRay does not start RayJob {ray_job.name}. Check that the KubeRay operator is running "
        f"(kubectl get deployments -A | grep kuberay) and watches namespace {namespace}.",
    )


def ray_job_stays(ray_jobs: Sequence[RayJob], now: datetime) -> Blocker | None:
    """A deleted RayJob that does not disappear. The next attempt, or a suspension, waits for it."""
    found = next(
        (each for each in ray_jobs if each.deleted_at and (now - each.deleted_at).total_seconds() >= GOING_SECONDS),
        None,
    )
    if found is None:
        return None
    finalizers = ", ".join(found.finalizers) or "none"
    return Blocker(
        Waiting.RAY_JOB_STAYS,
        f"RayJob {found.name} is being deleted, but it is blocked by finalizers: {finalizers}. "
        "For ray.io/..., check that the KubeRay operator is running; otherwise contact the finalizer's owner.",
    )


def starting(
    observed: Observed,
    ray_job: RayJob,
    clusters: Sequence[RayCluster],
    pods: Sequence[Pod],
    lost_early: Sequence[Loss],
    now: datetime,
) -> Blocker:
    """What a RayJob that is not suspended waits for: the first problem, from the RayJob down to its containers."""
    job, evidence = observed.job, observed.evidence
    found = _refused_by_kuberay(ray_job) or no_kuberay(ray_job, job.namespace, observed.kuberay_began, now)
    found = found or not_created(job, clusters)
    if not found and (loss := newest(lost_early, now)):
        found = Blocker(loss.reason, sentences(loss.message, "KubeRay replaces the pod."))
    found = found or next((blocker for pod in pods if (blocker := of_pod(job, pod, now))), None)
    found = found or _of_events(job, pods, evidence, now)
    if found:
        return found
    if ray_job.deployment_status == "Running":
        return Blocker(Waiting.STARTING, "The pods are ready; the training process is starting.", stuck=False)
    return Blocker(Waiting.STARTING, f"KubeRay is starting the pods of RayJob {ray_job.name}.", stuck=False)


def not_created(job: Job, clusters: Sequence[RayCluster]) -> Blocker | None:
    """Why KubeRay cannot create a pod; None if it can."""
    messages = (each.replica_failure_message for each in clusters)
    return next((_creation_failed(job, message) for message in messages if message), None)


def exceeds_quota(message: str) -> bool:
    """Whether a refusal is that of a ResourceQuota, so that the end of something else makes room."""
    return _QUOTA.search(message) is not None


def refused(refusal: Refusal) -> Blocker:
    """What the API server refused to create."""
    message = redacted(refusal.message)
    if refusal.reason == "AlreadyExists":
        return name_taken(refusal.kind, refusal.name)
    if refusal.reason == "NamespaceTerminating":
        return Blocker(Waiting.NAMESPACE_TERMINATING, "The namespace is being deleted.")
    if exceeds_quota(message):
        problem = f"{refusal.kind} {refusal.name} exceeds the namespace's ResourceQuota: {message}"
        return Blocker(Waiting.QUOTA_EXCEEDED, sentences(problem, _QUOTA_HINT))
    if refusal.kind == "RayJob" and refusal.code == 404:
        return Blocker(Waiting.NO_KUBERAY, f"The cluster has no RayJobs ({message}). Install KubeRay 1.6.")
    reason = Waiting.RAY_JOB_REFUSED if refusal.kind == "RayJob" else Waiting.OBJECT_REFUSED
    problem = f"The API server refuses {refusal.kind} {refusal.name}: {message}"
    return Blocker(reason, sentences(problem, _refusal_hint(refusal), "lorarl tries again."))


def _refusal_hint(refusal: Refusal) -> str:
    if refusal.kind == "ResourceClaimTemplate" and refusal.code == 404:
        return "cluster.gpuClaim needs Kubernetes 1.34 or newer. Use cluster.gpuResource in a new job."
    if "kueue" in refusal.message.lower():
        return (
            "Label the LoRARLJob with kueue.x-k8s.io/queue-name, so that lorarl creates the RayJob as Kueue expects it."
        )
    if refusal.kind == "RayJob":
        return "If cluster.podTemplateOverrides are the cause, correct them and apply the job again."
    if by_admission(refusal.message):
        return "Ask who maintains this policy or webhook."
    if refusal.code == 403:
        return "Check the operator's permissions."
    return "Correct the named fields in a new job."


def left_over(ray_job: str, namespace: str) -> Blocker:
    """A RayJob of an earlier job has the name that ours needs, and nothing deletes it."""
    problem = f"RayJob {ray_job} has no owner: a job of this name was deleted without it (--cascade=orphan)"
    fix = f"Delete it (kubectl delete rayjob {ray_job} -n {namespace})."
    return Blocker(Waiting.NAME_TAKEN, f"{problem}, and it runs on. {fix}")


def name_taken(kind: str, name: str) -> Blocker:
    """Another owner's object has the name that ours needs."""
    return Blocker(
        Waiting.NAME_TAKEN,
        f"{kind} {name} already exists and belongs to something else. Delete it, or apply this job under another name. "
        "Objects of a deleted job with this name disappear by themselves in a moment.",
    )


def _refused_by_kuberay(ray_job: RayJob) -> Blocker | None:
    if not ray_job.is_refused:
        return None
    problem = f"KubeRay refuses RayJob {ray_job.name}: {ray_job.message}"
    hint = "Correct the job and apply it again; cluster.podTemplateOverrides may be the cause."
    changed = "If someone changed the RayJob, delete it; lorarl recreates it."
    return Blocker(Waiting.RAY_JOB_REFUSED, sentences(problem, hint, changed))


def _creation_failed(job: Job, message: str) -> Blocker:
    """A pod that the API server did not let KubeRay create. Each try gives the pod a new name."""
    message = _POD_NAME.sub("its pod", redacted(_MARKER.sub("", message)))
    if exceeds_quota(message):
        return Blocker(Waiting.QUOTA_EXCEEDED, sentences(message, _QUOTA_HINT))
    if missing := _missing(job, message):
        return missing
    if taken := _SUBMITTER_TAKEN.search(message):
        return name_taken("Job", taken[1])
    if "violates PodSecurity" in message:
        hint = "The namespace forbids what cluster.rdma or cluster.podTemplateOverrides ask for."
        if "ray-job-submitter" in message:
            hint = (
                "KubeRay's own submitter has no security context: set cluster.submissionMode to K8sJobMode or HTTPMode."
            )
        return Blocker(Waiting.POD_REFUSED, sentences(message, hint))
    return Blocker(Waiting.POD_REFUSED, sentences(message, "Correct what the message names."))


def of_pod(job: Job, pod: Pod, now: datetime) -> Blocker | None:
    """What a pod waits for; None if it does not say so itself."""
    if pod.deletion_asked_at:
        return None
    if pod.unschedulable:
        hint = f"Free or add such nodes, or ask for less in {_ASKED_IN.get(pod.role, _ASKED_IN['worker'])}"
        problem = f"No node fits {pod.role} pod {pod.name}: {pod.unschedulable}"
        return Blocker(Waiting.UNSCHEDULABLE, sentences(problem, hint))
    for container in pod.containers:
        if container.exit_code is not None:
            continue
        message = redacted(container.message)
        if container.reason in _IMAGE:
            problem = f"The {pod.role} pod {pod.name} cannot pull its image: {message or container.reason}"
            return Blocker(Waiting.IMAGE_PULL, sentences(problem, _image_hint(job, pod)))
        if container.reason in _CONFIG:
            where = f"Container {container.name} of the {pod.role} pod {pod.name}"
            problem = f"{where} cannot be created: {message or container.reason}"
            hint = "Correct the image or cluster.podTemplateOverrides."
            return _missing(job, message) or Blocker(Waiting.CONTAINER_REFUSED, sentences(problem, hint))
    if pod.gated and now - pod.created_at >= _GATED_AFTER:
        return Blocker(
            Waiting.SCHEDULING_GATED,
            f"A scheduling gate blocks the {pod.role} pod {pod.name}. Check the queue that set the gate.",
        )
    return None


def _image_hint(job: Job, pod: Pod) -> str:
    secret = "name a Secret for the registry in cluster.imagePullSecrets"
    if pod.image and pod.image == job.read_status().get("trainerImage"):
        kept = "The job keeps the image of its first attempt (status.trainerImage)."
        return f"{kept} Set cluster.image to another tag or digest that the registry has, or {secret}."
    own = "cluster.environments.image, or without it " if pod.role == "environment" else ""
    return f"Correct {own}cluster.image, or {secret}."


def _of_events(job: Job, pods: Sequence[Pod], evidence: Evidence | None, now: datetime) -> Blocker | None:
    if evidence is None:
        return None
    waiting = {pod.name: pod for pod in pods if pod.phase == "Pending" and not pod.deletion_asked_at}
    for event in evidence.events:
        if now - event.last_seen > _FRESH or (
            event.reason == "FailedToCreateRayCluster" and "already exists" in event.message
        ):
            continue  # Only KubeRay uses a RayCluster's name: its cache was behind, and it created the object twice.
        if event.reason.startswith("FailedToCreate") and (
            event.kind == "RayJob" or (event.kind == "RayCluster" and not pods)
        ):
            return _creation_failed(job, event.message)
        if event.kind == "Pod" and event.name in waiting and (found := _of_pod_event(job, waiting[event.name], event)):
            return found
    return None


def _of_pod_event(job: Job, pod: Pod, event: KubeEvent) -> Blocker | None:
    message = redacted(event.message)
    if event.reason == "FailedMount" and _KUBELET_IS_BUSY.search(message):
        return None  # The kubelet asks again by itself.
    if event.reason == "FailedMount":
        problem = f"The {pod.role} pod {pod.name} cannot mount a volume: {message}"
        return _missing(job, message) or Blocker(
            Waiting.VOLUME_NOT_MOUNTED, sentences(problem, "Correct what the message names.")
        )
    if event.reason in {"FailedAttachVolume", "FailedCreatePodSandBox"}:
        problem = f"Node {pod.node} cannot start the {pod.role} pod {pod.name}: {message}"
        return Blocker(Waiting.NODE_NOT_READY, sentences(problem, "The cause is the node, not the job."))
    return None


def _missing(job: Job, message: str) -> Blocker | None:
    """An object that a pod refers to and that does not exist. The message has nothing but its name."""
    found = _MISSING.search(message)
    if not found:
        return None
    kind, name = found[1].lower(), found[2].rpartition("/")[2]
    ours = name == access_name(job.name)
    recreated = "lorarl creates it again." if ours else ""
    if kind == "secret":
        problem = f"Secret {name} does not exist in namespace {job.namespace}."
        return Blocker(Waiting.SECRET_MISSING, f"{problem} Create it, and the job continues by itself.")
    if kind == "configmap":
        problem = f"ConfigMap {name} does not exist in namespace {job.namespace}."
        return Blocker(Waiting.CONFIG_MAP_MISSING, f"{problem} {recreated or 'Create it.'}", ours=ours)
    problem = f"ServiceAccount {name} does not exist in namespace {job.namespace}."
    hint = recreated or "Create it, or remove cluster.serviceAccountName."
    return Blocker(Waiting.SERVICE_ACCOUNT_MISSING, f"{problem} {hint}", ours=ours)
