"""The PodDisruptionBudget of a job whose evictions wait for a checkpoint. While it exists, no pod is evicted."""

from __future__ import annotations

from typing import Any

from lorarl_operator.decide.models import LABEL_JOB_UID, LABEL_ROLE, Job
from lorarl_operator.decide.names import access_name, metadata
from lorarl_operator.manifests.placement import HEAD, WORKER


def budget(job: Job, nodes: int) -> dict[str, Any]:
    """The budget for the head and the workers, on `nodes` nodes, of all attempts.

    Only `minAvailable` as a number works here: for all else Kubernetes asks the pods' controller for its scale, which a
    RayCluster does not have. A pod that is not ready may always be evicted.
    """
    pods = {
        "matchLabels": {LABEL_JOB_UID: job.uid},
        "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": [HEAD, WORKER]}],
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, access_name(job.name)),
        "spec": {"minAvailable": nodes + 1, "selector": pods, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
