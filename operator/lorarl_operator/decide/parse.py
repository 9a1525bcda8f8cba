"""From the API's dicts to the slim models.

Any object that the API server stores can be parsed; missing fields are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from lorarl_api.v1alpha1 import SCHEDULE_KIND, SWEEP_KIND
from lorarl_operator.decide.models import (
    ANNOTATION_GENERATION,
    ANNOTATION_PASSED,
    ANNOTATION_PODS,
    ANNOTATION_TEMPLATE,
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_ROLE,
    RETRYING,
    TRAINER,
    WORKER_GROUP,
    Budget,
    CleanupJob,
    Container,
    Job,
    KubeEvent,
    Maker,
    Pod,
    RayCluster,
    RayJob,
    Workload,
)
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.sweep_models import Sweep

Raw = Mapping[str, Any]
"""An object as the API server sends it."""

NOT_PASSED = (
    *("lorarl.io/", "app.kubernetes.io/", "kubectl.kubernetes.io/", "helm.sh/", "meta.helm.sh/"),
    *("argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/"),
)
"""Prefixes of a job's labels and annotations that its RayJob and pods do not get.

They are ours, or those of tools that recognize the objects which they manage by them, and would delete others.
"""
KUEUE = "kueue.x-k8s.io/"
QUEUE_LABEL = f"{KUEUE}queue-name"


def job_key(raw: Raw) -> tuple[str, str] | None:
    """(namespace, name) of the job that an object belongs to by its label `lorarl.io/job`; None without the label."""
    name = _labels(raw).get(LABEL_JOB)
    return (_meta(raw).get("namespace", ""), name) if name else None


def job(raw: Raw) -> Job:
    """A LoRARLJob."""
    meta = _meta(raw)
    owner = _controller(meta)
    return Job(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        generation=int(meta.get("generation") or 0),
        deleted_at=_deletion_asked_at(meta),
        finalizers=tuple(meta.get("finalizers") or ()),
        reported_at=_written_at(meta, TRAINER),
        passed_labels=passed(meta.get("labels")),
        passed_annotations=passed(meta.get("annotations")),
        spec=_compact(raw.get("spec")),
        status=_compact(raw.get("status")),
        maker=_maker(owner),
        created_at=time(meta.get("creationTimestamp")),
    )


def _maker(owner: Raw) -> Maker | None:
    kind = _text(owner, "kind")
    return Maker(kind, _text(owner, "name"), _text(owner, "uid")) if kind in (SWEEP_KIND, SCHEDULE_KIND) else None


def sweep(raw: Raw) -> Sweep:
    """A LoRARLSweep."""
    meta = _meta(raw)
    return Sweep(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        generation=int(meta.get("generation") or 0),
        deleted_at=_deletion_asked_at(meta),
        queue_labels=tuple(sorted(one for one in _labels(raw).items() if one[0].startswith(KUEUE))),
        spec=_compact(raw.get("spec")),
        status=_compact(raw.get("status")),
    )


def schedule(raw: Raw) -> Schedule:
    """A LoRARLSchedule."""
    meta = _meta(raw)
    return Schedule(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        generation=int(meta.get("generation") or 0),
        created_at=_required_time(meta.get("creationTimestamp")),
        deleted_at=_deletion_asked_at(meta),
        queue_labels=tuple(sorted(one for one in _labels(raw).items() if one[0].startswith(KUEUE))),
        spec=_compact(raw.get("spec")),
        status=_compact(raw.get("status")),
    )


def ray_job(raw: Raw) -> RayJob:
    """A RayJob."""
    meta, spec, status = _meta(raw), _dict(raw, "spec"), _dict(raw, "status")
    annotations = _dict(meta, "annotations")
    generation = str(annotations.get(ANNOTATION_GENERATION, ""))
    return RayJob(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        owner_uid=_controller(meta).get("uid", ""),
        generation=int(generation) if generation.isdecimal() and len(generation) < 20 else 0,
        pods_digest=_text(annotations, ANNOTATION_PODS),
        passed_digest=_text(annotations, ANNOTATION_PASSED),
        created_at=_required_time(meta.get("creationTimestamp")),
        deleted_at=time(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers") or ()),
        suspended=bool(spec.get("suspend")),
        queue=_labels(raw).get(QUEUE_LABEL, ""),
        managed_by=_text(spec, "managedBy"),
        job_status=_text(status, "jobStatus"),
        deployment_status=_text(status, "jobDeploymentStatus"),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        cluster_name=_text(status, "rayClusterName"),
        dashboard_url=_text(status, "dashboardURL"),
        started_at=time(status.get("startTime")),
        ended_at=_ended_at(meta, status),
        template=_text(annotations, ANNOTATION_TEMPLATE),
        failures=_count(status, "failed"),
        backoff_limit=_count(spec, "backoffLimit"),
        workers=_workers(_dict(spec, "rayClusterSpec"))[1],
    )


def ray_cluster(raw: Raw) -> RayCluster:
    """A RayCluster."""
    meta = _meta(raw)
    failure = _condition(raw, "ReplicaFailure")
    group, replicas = _workers(_dict(raw, "spec"))
    return RayCluster(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        job_uid=_labels(raw).get(LABEL_JOB_UID, ""),
        ray_job=_controller(meta).get("name", ""),
        replica_failure_reason=_text(failure, "reason"),
        replica_failure_message=_text(failure, "message"),
        group=group,
        replicas=replicas,
    )


def _workers(spec: Raw) -> tuple[int, int]:
    """Where the group of workers is in the spec of a RayCluster, and how many it asks for."""
    groups = [each if isinstance(each, dict) else {} for each in spec.get("workerGroupSpecs") or ()]
    found = [index for index, each in enumerate(groups) if each.get("groupName") == WORKER_GROUP]
    return (found[0], _count(groups[found[0]], "replicas")) if found else (0, 0)


def pod(raw: Raw) -> Pod:
    """A pod of an attempt, or of the clean-up Job."""
    meta, spec, status, labels = _meta(raw), _dict(raw, "spec"), _dict(raw, "status"), _labels(raw)
    scheduled, target, ready, containers_ready = (
        _condition(raw, kind, status=None) for kind in ("PodScheduled", "DisruptionTarget", "Ready", "ContainersReady")
    )
    waits = scheduled.get("status") == "False"
    disrupted = target.get("status") == "True"
    attempt = labels.get(LABEL_ATTEMPT, "")
    ray = f"ray-{labels.get(LABEL_ROLE, '')}"
    return Pod(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        job_uid=labels.get(LABEL_JOB_UID, ""),
        cluster=labels.get("ray.io/cluster", ""),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        role=labels.get(LABEL_ROLE, ""),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase"),
        reason=_text(status, "reason"),
        message=_text(status, "message"),
        ready=ready.get("status") == "True",
        silent=ready.get("status") == "False" and containers_ready.get("status") == "True",
        created_at=_required_time(meta.get("creationTimestamp")),
        deletion_asked_at=_deletion_asked_at(meta),
        gone_by=time(meta.get("deletionTimestamp")),
        scheduled_at=time(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        unschedulable=_text(scheduled, "message") if waits and scheduled.get("reason") == "Unschedulable" else "",
        gated=waits and scheduled.get("reason") == "SchedulingGated",
        disruption_reason=_text(target, "reason") if disrupted else "",
        disruption_message=_text(target, "message") if disrupted else "",
        image=_text(_named(spec.get("containers"), ray), "image"),
        image_id=_text(_named(status.get("containerStatuses"), ray), "imageID"),
        containers=tuple(_containers(status)),
    )


def cleanup_job(raw: Raw) -> CleanupJob:
    """The batch/v1 Job that removes checkpoints."""
    meta = _meta(raw)
    failed = _condition(raw, "Failed")
    return CleanupJob(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        job_uid=_labels(raw).get(LABEL_JOB_UID, ""),
        suspended=bool(_dict(raw, "spec").get("suspend")),
        complete=bool(_condition(raw, "Complete")),
        failed=(_text(failed, "message") or _text(failed, "reason")) if failed else "",
    )


def budget(raw: Raw) -> Budget:
    """A PodDisruptionBudget."""
    meta = _meta(raw)
    return Budget(
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        resource_version=_text(meta, "resourceVersion"),
        owner_uid=_text(_controller(meta), "uid"),
        deleted_at=_deletion_asked_at(meta),
    )


def event(raw: Raw) -> KubeEvent:
    """A core/v1 Event."""
    about = _dict(raw, "involvedObject")
    seen = (
        time(raw.get("lastTimestamp"))
        or time(_dict(raw, "series").get("lastObservedTime"))
        or time(raw.get("eventTime"))
    )
    return KubeEvent(
        kind=_text(about, "kind"),
        name=_text(about, "name"),
        reason=_text(raw, "reason"),
        message=_text(raw, "message"),
        last_seen=seen or _required_time(_meta(raw).get("creationTimestamp")),
    )


def workload(raw: Raw) -> Workload:
    """Kueue's Workload."""
    conditions = _dict(raw, "status").get("conditions") or ()
    return Workload(
        name=_text(_meta(raw), "name"),
        conditions=tuple(
            (_text(c, "type"), c.get("status") == "True", _text(c, "reason"), _text(c, "message")) for c in conditions
        ),
        active=_dict(raw, "spec").get("active") is not False,
    )


def time(text: Any) -> datetime | None:
    """A time in the API's format (RFC 3339); None if the value is not a time."""
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _containers(status: Raw) -> Iterator[Container]:
    for key in ("initContainerStatuses", "containerStatuses"):
        init = key == "initContainerStatuses"
        for each in status.get(key) or ():
            for period in ("state", "lastState"):
                state = _dict(each, period)
                if waiting := state.get("waiting"):
                    yield Container(
                        _text(each, "name"), init, None, _text(waiting, "reason"), _text(waiting, "message"), None
                    )
                if ended := state.get("terminated"):
                    code = ended.get("exitCode")
                    yield Container(
                        name=_text(each, "name"),
                        init=init,
                        exit_code=code if isinstance(code, int) else 0,
                        reason=_text(ended, "reason"),
                        message=_text(ended, "message"),
                        ended_at=time(ended.get("finishedAt")),
                    )


def _condition(raw: Raw, kind: str, status: str | None = "True") -> Raw:
    """The condition of a type if its status is `status` (None: any); otherwise empty."""
    for condition in _dict(raw, "status").get("conditions") or ():
        if condition.get("type") == kind and status in (None, condition.get("status")):
            return dict(condition)
    return {}


def _named(entries: Any, name: str) -> Raw:
    return next((each for each in entries or () if each.get("name") == name), {})


def _controller(meta: Raw) -> Raw:
    return next((owner for owner in meta.get("ownerReferences") or () if owner.get("controller")), {})


def _written_at(meta: Raw, manager: str | None) -> datetime | None:
    """When a field manager (None: any) last changed a field of the status."""
    entries = meta.get("managedFields") or ()
    ours = (one for one in entries if manager in (None, one.get("manager")) and one.get("subresource") == "status")
    return max((when for one in ours if (when := time(one.get("time")))), default=None)


def _ended_at(meta: Raw, status: Raw) -> datetime | None:
    """When a RayJob ended. KubeRay records no time if it continues after that."""
    retrying = status.get("jobDeploymentStatus") == RETRYING
    return _written_at(meta, None) if retrying else time(status.get("endTime"))


def _count(fields: Raw, key: str) -> int:
    value = fields.get(key)
    return value if type(value) is int else 0


def _deletion_asked_at(meta: Raw) -> datetime | None:
    gone_by = time(meta.get("deletionTimestamp"))
    return gone_by and gone_by - timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)


def passed(pairs: Any) -> tuple[tuple[str, str], ...]:
    """The labels or annotations that the RayJob and its pods get too."""
    return tuple(sorted((key, value) for key, value in (pairs or {}).items() if not key.startswith(NOT_PASSED)))


def _compact(value: Any) -> bytes:
    return json.dumps(value if value is not None else {}, separators=(",", ":")).encode()


def _meta(raw: Raw) -> dict[str, Any]:
    return _dict(raw, "metadata")


def _labels(raw: Raw) -> dict[str, str]:
    return _dict(_meta(raw), "labels")


def _dict(raw: Raw, key: str) -> dict[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else dict(value) if isinstance(value, Mapping) else {}


def _text(raw: Raw, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _required_time(text: Any) -> datetime:
    found = time(text)
    if found is None:
        raise ValueError(
            f"metadata.creationTimestamp: got {text!r}, expected a time. Pass an object that the API server has sent."
        )
    return found
