"""Slim, frozen models of the cluster's objects. `parse.py` makes them from the API's dicts.

The operator holds thousands of jobs in memory, so a model has only what `decide` reads. Spec and status of a job stay
compact JSON.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lorarl_operator.decide.reasons import Waiting

MANAGER = "lorarl-operator"
TRAINER = "lorarl-trainer"
"""Field manager of the trainer's part of a job's status."""
"""Field manager of all that the operator applies."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "lorarl"
LABEL_JOB = "lorarl.io/job"
LABEL_JOB_UID = "lorarl.io/job-uid"
"""Distinguishes the pods of a job from those of an older job with the same name."""
LABEL_ATTEMPT = "lorarl.io/attempt"
LABEL_ROLE = "lorarl.io/role"
"""On pods: `head`, `worker`, `engine` or `cleanup`."""
ANNOTATION_GENERATION = "lorarl.io/generation"
"""On a RayJob: generation of the LoRARLJob that it was created from."""
ANNOTATION_PODS = "lorarl.io/pods"
"""On a RayJob: digest of the part of the spec that its pods follow from."""
ANNOTATION_PASSED = "lorarl.io/passed"
"""On a RayJob: digest of the LoRARLJob's labels and annotations that it was created with."""
ANNOTATION_TEMPLATE = "lorarl.io/template"
"""On a RayJob: the template that its LoRARLJob was completed with, as JSON."""
FINALIZER = "lorarl.io/cleanup"
WORKER_GROUP = "workers"
"""The group of a RayCluster with the pods that train."""
NODE_COMES = {"TriggeredScaleUp": "The cluster autoscaler", "Nominated": "Karpenter"}
"""Reasons of Events about a pod for which a node is being added, and who adds it."""
RETRYING = "Retrying"
"""Deployment status of a RayJob that has failed and starts again with a new RayCluster."""
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
"""Server-side filter of all watches except that of LoRARLJobs. KubeRay copies a RayJob's labels to its RayCluster."""


@dataclass(frozen=True, slots=True)
class Maker:
    """The LoRARLSweep or LoRARLSchedule that made a job and owns it."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Job:
    """A LoRARLJob.

    Attributes:
        deleted_at: When its deletion was requested.
        reported_at: When the trainer last changed its part of the status.
        passed_labels: Labels that the RayJob and its pods get too.
        passed_annotations: The same for annotations.
        spec: `spec` as compact JSON.
        status: `status` as compact JSON, with the operator's and the trainer's parts.
        template: The template that completed the spec, as compact JSON; empty without one.
        maker: The sweep that it is a trial of, or the schedule that started it.
        created_at: None if the API server has not said it.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleted_at: datetime | None
    finalizers: tuple[str, ...]
    reported_at: datetime | None
    passed_labels: tuple[tuple[str, str], ...]
    passed_annotations: tuple[tuple[str, str], ...]
    spec: bytes
    status: bytes
    template: str = ""
    maker: Maker | None = None
    created_at: datetime | None = None

    def read_spec(self) -> dict[str, Any]:
        """The spec as a new dict."""
        return _mapping(self.spec)

    def read_status(self) -> dict[str, Any]:
        """The status as a new dict."""
        return _mapping(self.status)

    @property
    def loses_files(self) -> bool:
        """Whether the job is being deleted, and its checkpoints and adapters with it."""
        if self.deleted_at is None or FINALIZER not in self.finalizers:
            return False
        checkpoint = self.read_spec().get("checkpoint")
        return isinstance(checkpoint, dict) and checkpoint.get("deletionPolicy") == "Delete"


@dataclass(frozen=True, slots=True)
class RayJob:
    """A RayJob with the label of the job, or one that has a name that the job needs.

    Attributes:
        owner_uid: uid of its controller.
        generation: Generation of the LoRARLJob that it was created from; 0 if lorarl did not make it.
        pods_digest: Digest of the part of the spec that its pods follow from; empty if it was not recorded.
        passed_digest: Digest of the labels and annotations that it was given; empty if it was not recorded.
        created_at: Its creation by the API server's clock.
        deleted_at: When its deletion was requested.
        finalizers: Finalizers that still block its deletion.
        suspended: `spec.suspend`, which belongs to the queue.
        started_at: When KubeRay started it. Each resumption resets it.
        ended_at: When KubeRay saw its end, also one after which it continues.
        queue: Value of Kueue's queue label, which Kueue's own default may have set.
        managed_by: `spec.managedBy`: the controller that runs it; empty stands for KubeRay. Kueue's MultiKueue sets it.
        reason: With `message`, why KubeRay refused it or why it failed.
        template: The template that its LoRARLJob was completed with, as compact JSON; empty without one.
        failures: How often it has failed. It may have continued after that.
        backoff_limit: After how many failures KubeRay starts it again, with a new RayCluster.
        last_end: What it was when it last failed and continued, if that was seen.
        workers: Worker pods that it asks for.
    """

    name: str
    uid: str
    resource_version: str
    owner_uid: str
    generation: int
    pods_digest: str
    passed_digest: str
    created_at: datetime
    deleted_at: datetime | None
    finalizers: tuple[str, ...]
    suspended: bool
    queue: str
    managed_by: str
    job_status: str
    deployment_status: str
    reason: str
    message: str
    cluster_name: str
    dashboard_url: str
    started_at: datetime | None
    ended_at: datetime | None
    template: str = ""
    failures: int = 0
    backoff_limit: int = 0
    last_end: RayJob | None = None
    workers: int = 0

    @property
    def runs_here(self) -> bool:
        """Whether this cluster's KubeRay runs it."""
        return self.managed_by in ("", "ray.io/kuberay-operator")

    @property
    def is_refused(self) -> bool:
        """Whether KubeRay refuses its spec, at which it looks also while a queue holds the RayJob."""
        return self.deployment_status == "ValidationFailed"


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A RayCluster of an attempt: what explains why its pods do not exist, and for how many workers it asks.

    Attributes:
        ray_job: Name of the RayJob that owns it.
        replica_failure_reason: Reason of the condition ReplicaFailure if it is True; otherwise empty.
        replica_failure_message: Its message.
        group: Where the workers are among its worker groups.
        replicas: Worker pods that it asks for now; 0 if that is not known.
    """

    name: str
    uid: str
    resource_version: str
    job_uid: str
    ray_job: str
    replica_failure_reason: str
    replica_failure_message: str
    group: int = 0
    replicas: int = 0


@dataclass(frozen=True, slots=True)
class Container:
    """A container that waits with a reason, or that has ended.

    Attributes:
        init: Whether it is an init container.
        exit_code: None while it waits.
    """

    name: str
    init: bool
    exit_code: int | None
    reason: str
    message: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an attempt, or of the clean-up Job.

    Attributes:
        cluster: Name of its RayCluster.
        attempt: Number of the attempt; 0 if its label has none.
        role: `head`, `worker`, `engine` or `cleanup`.
        created_at: When the API server created it.
        deletion_asked_at: When its deletion was requested: deletionTimestamp minus the grace period.
        gone_by: deletionTimestamp, the end of its grace period.
        ready: Whether its condition Ready is True.
        silent: Whether Kubernetes hears nothing from its node: only then is a pod with ready containers not ready.
        scheduled_at: When it got its node; None while it has none.
        unschedulable: The scheduler's message if it found no node.
        gated: Whether a scheduling gate (usually a queue's) blocks it.
        disruption_reason: Reason of the condition DisruptionTarget if it is True; otherwise empty.
        image: Image of Ray's container.
        image_id: The same as the node found it, usually with its digest; empty until it has started.
        containers: Those that wait with a reason or have ended, including the ends before a restart.
    """

    name: str
    uid: str
    resource_version: str
    job_uid: str
    cluster: str
    attempt: int
    role: str
    node: str
    phase: str
    reason: str
    message: str
    ready: bool
    silent: bool
    created_at: datetime
    deletion_asked_at: datetime | None
    gone_by: datetime | None
    scheduled_at: datetime | None
    unschedulable: str
    gated: bool
    disruption_reason: str
    disruption_message: str
    image: str
    image_id: str
    containers: tuple[Container, ...]

    @property
    def has_devices(self) -> bool:
        """Whether it is a worker's or an engine's, which have the job's GPUs."""
        return self.role in ("worker", "engine")

    @property
    def is_spare(self) -> bool:
        """Whether its loss interrupts no training: the trainer uses others of its kind, and the pod in its place."""
        return self.role in ("engine", "environment")


@dataclass(frozen=True, slots=True)
class CleanupJob:
    """The batch/v1 Job that removes a deleted job's checkpoints."""

    name: str
    uid: str
    resource_version: str
    job_uid: str
    suspended: bool
    complete: bool
    failed: str
    """Message of its condition Failed if it is True; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The PodDisruptionBudget that keeps the pods from being evicted, or another one of its name.

    Attributes:
        owner_uid: uid of its controller.
        deleted_at: When its deletion was requested.
    """

    name: str
    uid: str
    resource_version: str
    owner_uid: str
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class KubeEvent:
    """An Event about an object of an attempt."""

    kind: str
    name: str
    reason: str
    message: str
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class Workload:
    """Kueue's Workload of a RayJob. Its conditions are (type, whether True, reason, message).

    Attributes:
        active: `spec.active`. One that is not active stays out of its queue until someone sets it.
    """

    name: str
    conditions: tuple[tuple[str, bool, str, str], ...]
    active: bool = True


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is fetched only while a job is stuck, and never watched.

    Attributes:
        events: Warnings, and Events about nodes that are being added; the newest first.
        workload: None if it was not fetched. A Workload without a name says that Kueue has none for the RayJob.
        cordoned: Names of the cluster's nodes that take no new pods; None if they were not fetched.
        refused: Whether the operator may not read what it asked for.
    """

    events: tuple[KubeEvent, ...] = ()
    workload: Workload | None = None
    cordoned: frozenset[str] | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's permanent refusal of an action: 4xx except 410, 429 and 409 Conflict. 409 AlreadyExists counts.

    The controller keeps a job's newest refusal in memory until the same action succeeds or the job is deleted.

    Attributes:
        name: Name of the object of the action.
        code: HTTP status.
        reason: `reason` of the API's Status, such as Invalid, Forbidden or AlreadyExists; or the reason of its first
            cause if that says more (NamespaceTerminating).
        generation: Generation of the LoRARLJob at that time.
    """

    kind: str
    name: str
    code: int
    reason: str
    message: str
    at: datetime
    generation: int


@dataclass(frozen=True, slots=True)
class TemplateFault:
    """Why a job cannot have the values of its template: a reason, and a message with the fix."""

    reason: Waiting
    message: str


@dataclass(frozen=True, slots=True)
class Observed:
    """A job and all its objects. The cache behind it is complete before the first decision."""

    job: Job
    ray_jobs: tuple[RayJob, ...] = ()
    ray_clusters: tuple[RayCluster, ...] = ()
    pods: tuple[Pod, ...] = ()
    departed: tuple[Pod, ...] = ()
    """The last pods that were deleted, as they were: KubeRay replaces a pod at once, and only the old one says why."""
    cleanup: CleanupJob | None = None
    budget: Budget | None = None
    kuberay_began: datetime | None = None
    """When KubeRay last started a RayJob of any job.

    A RayJob behind a thousand others may wait long without being forgotten.
    """
    evidence: Evidence | None = None
    refusals: tuple[Refusal, ...] = ()
    template_fault: TemplateFault | None = None
    is_noted: bool = True
    """Whether the sweep or schedule that made the job, if any, has written how it ended."""

    def refused(self, kind: str, names: Collection[str] | None = None) -> Refusal | None:
        """The refusal of an object of a kind, with one of these names (None: any); None if there is none."""
        found = (one for one in self.refusals if one.kind == kind)
        return next((one for one in found if names is None or one.name in names), None)


def _mapping(text: bytes) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return dict(value) if isinstance(value, Mapping) else {}
