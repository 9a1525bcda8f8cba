"""AIBrix's ModelAdapters: their definition, and what its controller writes into their status.

Read in vllm-project/aibrix at e3e10f9e, pkg/controller/modeladapter/modeladapter_controller.go.
"""

from __future__ import annotations

from pathlib import Path

from support.cluster.client import Api, Object

CRD = Path(__file__).parents[1] / "aibrix/model.aibrix.ai_modeladapters.yaml"
KIND = "ModelAdapter"


def loads(api: Api, namespace: str, name: str, pods: int = 2) -> None:
    """The adapter is loaded by all pods that match."""
    ready = condition("True", "ModelAdapterAvailable", "the adapter is loaded")
    status = {"phase": "Running", "candidates": pods, "desiredReplicas": pods, "readyReplicas": pods}
    instances = [f"vllm-{number}" for number in range(pods)]
    api.patch(KIND, name, {"status": status | {"instances": instances, "conditions": [ready]}}, namespace, "status")


def fails(api: Api, namespace: str, name: str, why: str) -> None:
    """No pod can load it."""
    said = condition("False", "ModelAdapterLoadingError", f"Loading failed on all pods: {why}")
    api.patch(KIND, name, {"status": {"phase": "Failed", "conditions": [said]}}, namespace, "status")


def condition(status: str, reason: str, message: str) -> Object:
    return {
        "type": "Ready",
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def names(api: Api, namespace: str) -> set[str]:
    """Names of all ModelAdapters of a namespace."""
    return {one["metadata"]["name"] for one in api.list(KIND, namespace)}
