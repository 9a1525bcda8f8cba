"""`cluster.gpuClaim`: GPUs by dynamic resource allocation."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lorarl_api.v1alpha1 import ClusterSpec
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.names import access_name, metadata

CLAIM = "gpus"
"""Name of the claim in a worker's pod, and of its request."""


def claim_template(job: Job, cluster: ClusterSpec) -> dict[str, Any] | None:
    """The ResourceClaimTemplate, from which each worker pod gets its claim; None without `gpuClaim`.

    Kubernetes never changes its spec. So its name has a digest of it: another spec is another object.
    """
    if cluster.gpu_claim is None:
        return None
    devices: dict[str, Any] = {
        "deviceClassName": cluster.gpu_claim.device_class,
        "allocationMode": "ExactCount",
        "count": cluster.gpus_per_node,
    }
    if cluster.gpu_claim.selectors:
        devices["selectors"] = [{"cel": {"expression": each}} for each in cluster.gpu_claim.selectors]
    digest = hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": metadata(job, f"{access_name(job.name)}-{CLAIM}-{digest}"),
        "spec": {"spec": {"devices": {"requests": [{"name": CLAIM, "exactly": devices}]}}},
    }


def pod_claims(job: Job, cluster: ClusterSpec) -> dict[str, Any]:
    """The claims of a worker's pod, if it has any."""
    template = claim_template(job, cluster)
    if template is None:
        return {}
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": template["metadata"]["name"]}]}
