"""The trainer's permissions in the cluster: it may write the status of this one job, and nothing else."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import GROUP, ClusterSpec
from lorarl_operator.decide.models import CleanupJob, Job
from lorarl_operator.decide.names import access_name, cleanup_account_name, labels, metadata
from lorarl_operator.decide.settings import Settings
from lorarl_operator.manifests.config import config_map
from lorarl_operator.manifests.gpu_claim import claim_template
from lorarl_operator.manifests.network import network_policy

_RBAC = "rbac.authorization.k8s.io"


def service_account_of(job: Job, cluster: ClusterSpec) -> str:
    """Name of the ServiceAccount of head and workers."""
    return cluster.service_account_name or access_name(job.name)


def needs(job: Job, cluster: ClusterSpec, settings: Settings) -> list[dict[str, Any]]:
    """What exists before the pods: the ConfigMap, the NetworkPolicy, the template of their claim, the ServiceAccount.

    There is no claim without `gpuClaim`, no ServiceAccount if the job names one, and no policy if the cluster has its
    own.
    """
    accounts = [] if cluster.service_account_name else [_service_account(job, cluster)]
    template = claim_template(job, cluster)
    policy = network_policy(job, settings.job_network_policy) if settings.job_network_policy else None
    return [*accounts, config_map(job), *(each for each in (template, policy) if each)]


def grants(job: Job, cluster: ClusterSpec) -> list[dict[str, Any]]:
    """The trainer's permission: the Role, then its RoleBinding, which the API server accepts only after the Role."""
    return [_role(job), _role_binding(job, cluster)]


def cleanup_service_account(job: Job, cluster: ClusterSpec, cleanup: CleanupJob) -> dict[str, Any]:
    """The ServiceAccount whose annotations give the clean-up Job access to a cloud's store.

    The job's own account is deleted early in a foreground deletion. This one belongs to the clean-up Job, and is
    deleted with it.
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
