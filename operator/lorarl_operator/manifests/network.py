"""The NetworkPolicy of a job: its pods reach each other, and hardly anyone else reaches them.

The workers' rendezvous and NCCL listen on ports that they choose, without a token.
"""

from __future__ import annotations

from typing import Any

from lorarl_operator.decide.models import LABEL_JOB_UID, Job
from lorarl_operator.decide.names import access_name, metadata
from lorarl_operator.decide.settings import NetworkAccess

DASHBOARD_PORT = 8265
"""Port of Ray's dashboard in the head. KubeRay submits the job there, and asks how it is."""
_KUBERAY = {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}}
"""KubeRay's operator. Its chart and its manifests give it this label."""
_DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def network_policy(job: Job, access: NetworkAccess) -> dict[str, Any]:
    """The policy for all pods of the job, in all attempts: head, workers, submitter and clean-up.

    It restricts no connections between them. The kubelet's probes and `kubectl port-forward` need no rule.
    """
    own = {"podSelector": {"matchLabels": {LABEL_JOB_UID: job.uid}}}
    ingress: list[dict[str, Any]] = [
        {"from": [own, *access.sources]},
        {"from": [_kuberay(access.kuberay_namespace)], "ports": [{"port": DASHBOARD_PORT, "protocol": "TCP"}]},
    ]
    spec: dict[str, Any] = {**own, "policyTypes": ["Ingress"], "ingress": ingress}
    if access.egress is not None:
        spec["policyTypes"].append("Egress")
        spec["egress"] = [{"to": [own]}, _DNS, *access.egress]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, access_name(job.name)),
        "spec": spec,
    }


def _kuberay(namespace: str) -> dict[str, Any]:
    """KubeRay's operator in a namespace; in any if that is empty, where anyone's pod may have its label."""
    # The API server gives each namespace this label, and no one else can.
    there = {"matchLabels": {"kubernetes.io/metadata.name": namespace}} if namespace else {}
    return {"namespaceSelector": there, "podSelector": _KUBERAY}
