"""What the trainer may do in the cluster: write this one job's status, and nothing else."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import GROUP, ClusterSpec
from lorarl_operator.manifests.config import config_map
from lorarl_operator.models import CleanupJob, Job
from lorarl_operator.names import access_name, cleanup_account_name, labels, metadata

_RBAC = "rbac.authorization.k8s.io"


def service_account_of(job: Job, cluster: ClusterSpec) -> str:
    """Name of the ServiceAccount that head and workers run as."""
    return cluster.service_account_name or access_name(job.name)


def needs(job: Job, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """What a pod cannot start without: the ServiceAccount (where the job names none) and the ConfigMap."""
    accounts = [] if cluster.service_account_name else [_service_account(job, cluster)]
    return [*accounts, config_map(job)]


def grants(job: Job, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """The trainer's right: the Role, and then its RoleBinding, which the API server takes only when the Role is there."""
    return [_role(job), _role_binding(job, cluster)]


def cleanup_service_account(job: Job, cluster: ClusterSpec, cleanup: CleanupJob) -> dict[str, Any]:
    """The ServiceAccount by whose annotations a cloud lets the clean-up into the store.

    The job's own goes early in a foreground deletion; this one belongs to the clean-up Job and goes with it.
    """
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": cleanup_account_name(job.name),
            "namespace": job.namespace,
            "labels": labels(job),
            "annotations": dict(cluster.service_account_annotations),
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": cleanup.name, "uid": cleanup.uid, "controller": True},
            ],
        },
    }


def _service_account(job: Job, cluster: ClusterSpec) -> dict[str, Any]:
    about = metadata(job, access_name(job.name))
    if cluster.service_account_annotations:
        about["annotations"] = dict(cluster.service_account_annotations)
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about}


def _role(job: Job) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(job, access_name(job.name)),
        "rules": [
            {
                "apiGroups": [GROUP],
                "resources": ["lorarljobs/status"],
                "resourceNames": [job.name],
                "verbs": ["get", "patch"],
            }
        ],
    }


def _role_binding(job: Job, cluster: ClusterSpec) -> dict[str, Any]:
    name = access_name(job.name)
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(job, name),
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": service_account_of(job, cluster), "namespace": job.namespace}],
    }
