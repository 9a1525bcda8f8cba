"""What is left in a namespace of jobs that are gone."""

from __future__ import annotations

from support.cluster.client import Api
from support.cluster.mirror import Mirror
from support.cluster.processes import until

KINDS = (
    "LoRARLJob",
    "RayJob",
    "RayCluster",
    "Pod",
    "Job",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "Service",
    "PodDisruptionBudget",
)
OF_KUBERNETES = frozenset({("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")})


def leftovers(api: Api, namespace: str) -> list[str]:
    """Everything in a namespace that Kubernetes itself does not keep there, as `kind/name`."""
    found = [(kind, one["metadata"]["name"]) for kind in KINDS for one in api.list(kind, namespace)]
    return [f"{kind}/{name}" for kind, name in found if (kind, name) not in OF_KUBERNETES]


def ends_clean(api: Api, seen: Mirror) -> list[str]:
    """Delete all jobs; what is left of them then."""
    for job in seen.all("LoRARLJob"):
        api.delete("LoRARLJob", job["metadata"]["name"], seen.namespace)
    for job in seen.all("Job"):
        if job["spec"].get("ttlSecondsAfterFinished") is not None:  # Its end is only brought forward.
            api.delete("Job", job["metadata"]["name"], seen.namespace)
    try:
        until(120, "everything of the jobs is gone", lambda: not leftovers(api, seen.namespace))
    except AssertionError:
        return [f"left over: {leftovers(api, seen.namespace)}"]
    return []
