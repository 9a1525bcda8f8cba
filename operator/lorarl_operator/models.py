"""What the operator sees of the world, slim and frozen. `parse.py` makes these from the API's dicts; `decision.py` has what is decided.

Thousands of jobs are held in memory, so an object keeps only what `decide` reads; spec and status of a job stay compact JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

MANAGER = "lorarl-operator"
"""Field manager of everything that the operator applies."""
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY = "lorarl"
LABEL_JOB = "lorarl.io/job"
LABEL_JOB_UID = "lorarl.io/job-uid"
"""Tells the pods of a job from those of an older job with the same name."""
LABEL_ATTEMPT = "lorarl.io/attempt"
LABEL_ROLE = "lorarl.io/role"
"""On pods: `head`, `worker` or `cleanup`."""
ANNOTATION_GENERATION = "lorarl.io/generation"
"""On a RayJob: generation of the LoRARLJob that it was made from."""
FINALIZER = "lorarl.io/cleanup"
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"
"""Server-side filter of the watches of everything but LoRARLJobs. KubeRay passes a RayJob's labels on to its RayCluster."""


@dataclass(frozen=True, slots=True)
class Job:
    """A LoRARLJob.

    Attributes:
        deleted_at: When its deletion was asked for.
        passed_labels: Labels of schedulers, which are passed on to the RayJob and its pods.
        passed_annotations: The same of annotations.
        spec: `spec` as compact JSON.
        status: `status` as compact JSON: the operator's and the trainer's parts.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleted_at: datetime | None
    finalizers: tuple[str, ...]
    passed_labels: tuple[tuple[str, str], ...]
    passed_annotations: tuple[tuple[str, str], ...]
    spec: bytes
    status: bytes

    def read_spec(self) -> dict[str, Any]:
        """The spec, parsed anew."""
        return _mapping(self.spec)

    def read_status(self) -> dict[str, Any]:
        """The status, parsed anew."""
        return _mapping(self.status)


@dataclass(frozen=True, slots=True)
class RayJob:
    """A RayJob with the label of the job, or one that holds a name that the job needs.

    Attributes:
        owner_uid: uid of its controller.
        generation: Generation of the LoRARLJob that it was made from.
        created_at: Its creation by the API server's clock.
        deleted_at: When its deletion was asked for.
        finalizers: Whoever must let it go first.
        suspended: `spec.suspend`, which belongs to the queue.
        started_at: When KubeRay began with it; anew after each suspension.
        ended_at: When KubeRay saw its end.
        queue: Kueue's queue: the label, which Kueue's own default may have set.
        reason: With `message`, why KubeRay refused it or it failed.
    """

    name: str
    uid: str
    resource_version: str
    owner_uid: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None
    finalizers: tuple[str, ...]
    suspended: bool
    queue: str
    job_status: str
    deployment_status: str
    reason: str
    message: str
    cluster_name: str
    dashboard_url: str
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A RayCluster of an attempt: only what explains why its pods are not there.

    Attributes:
        ray_job: Name of the RayJob that owns it.
        replica_failure: Reason and message of the condition ReplicaFailure, where it is True; else empty.
    """

    name: str
    uid: str
    resource_version: str
    job_uid: str
    ray_job: str
    replica_failure_reason: str
    replica_failure_message: str


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod that waits with a reason, or that has ended. `exit_code` is None while it waits."""

    name: str
    exit_code: int | None
    reason: str
    message: str
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an attempt, or of the clean-up.

    Attributes:
        cluster: Name of its RayCluster.
        attempt: Number of the attempt; 0 where its label is none.
        role: `head`, `worker` or `cleanup`.
        created_at: When the API server took it.
        deletion_asked_at: When its deletion was asked for: deletionTimestamp less the grace period.
        gone_by: deletionTimestamp: when its grace period ends.
        ready: Whether its condition Ready is True.
        unschedulable: The scheduler's message, where it found no node.
        gated: Whether a scheduling gate (a queue's) holds it back.
        disruption_reason: Reason of the condition DisruptionTarget, where it is True; else empty.
        containers: Those that wait with a reason or have ended, also the ends before a restart.
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
    created_at: datetime
    deletion_asked_at: datetime | None
    gone_by: datetime | None
    unschedulable: str
    gated: bool
    disruption_reason: str
    disruption_message: str
    containers: tuple[Container, ...]


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
    """Message of its condition Failed, where True; else empty."""


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
    """Kueue's Workload of a RayJob: its conditions, as (type, whether True, reason, message)."""

    name: str
    conditions: tuple[tuple[str, bool, str, str], ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is fetched only while a job is stuck, never watched.

    Attributes:
        events: The newest first; warnings alone will do.
        workload: None where it was not asked for; one without a name where Kueue has none for the RayJob.
    """

    events: tuple[KubeEvent, ...] = ()
    workload: Workload | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server's answer to an action that it refused for good (4xx other than 409 Conflict, 410 and 429).

    The runtime keeps a job's newest one in memory until the same action succeeds or the job is deleted. 409 AlreadyExists is one too.

    Attributes:
        name: Name of the object of the action.
        code: HTTP status.
        reason: `reason` of the API's Status, e.g. Invalid, Forbidden, AlreadyExists; or the reason of its first cause where that says
            more (NamespaceTerminating).
        generation: Generation of the LoRARLJob at the time.
    """

    kind: str
    name: str
    code: int
    reason: str
    message: str
    at: datetime
    generation: int


@dataclass(frozen=True, slots=True)
class Observed:
    """A job and everything of it. The caches behind it have been filled before the first decision."""

    job: Job
    ray_jobs: tuple[RayJob, ...] = ()
    ray_clusters: tuple[RayCluster, ...] = ()
    pods: tuple[Pod, ...] = ()
    departed: tuple[Pod, ...] = ()
    """The last pods that went, as they were at the end: KubeRay replaces a pod within a moment, and why it ended is told by it alone."""
    cleanup: CleanupJob | None = None
    kuberay_began: datetime | None = None
    """When KubeRay last took up a RayJob, of any job: one that waits longer behind a thousand others is not forgotten."""
    evidence: Evidence | None = None
    refusal: Refusal | None = None


def _mapping(text: bytes) -> dict[str, Any]:
    value = json.loads(text) if text else {}
    return dict(value) if isinstance(value, Mapping) else {}
