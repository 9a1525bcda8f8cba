"""What is left in a namespace of jobs that are gone."""

from __future__ import annotations

from support.cluster.client import Api

KINDS = ("LoRARLJob", "RayJob", "RayCluster", "Pod", "Job", "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Secret", "Service")
OF_KUBERNETES = frozenset({("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")})


def leftovers(api: Api, namespace: str) -> list[str]:
    """Everything in a namespace that Kubernetes itself does not keep there, as `kind/name`."""
    found = [(kind, one["metadata"]["name"]) for kind in KINDS for one in api.list(kind, namespace)]
    return [f"{kind}/{name}" for kind, name in found if (kind, name) not in OF_KUBERNETES]
