"""What happens to pods that kwok plays: their status is patched as by a kubelet, and they go as in clusters."""

from __future__ import annotations

import datetime
from typing import Any

from support.cluster.client import Api, Object, is_ready

SUBMITTER = "ray-job-submitter"
HEAD = "head"
WORKER = "worker"


def pods_of(api: Api, namespace: str, rayjob: str, role: str | None = None) -> list[Object]:
    """The pods of a RayJob's newest cluster: the head (`HEAD`), the workers (`WORKER`) or all; the oldest first."""
    job = api.get("RayJob", rayjob, namespace)
    cluster = (job or {}).get("status", {}).get("rayClusterName")
    if not cluster:
        return []
    labels = f"ray.io/cluster={cluster}" + (f",ray.io/node-type={role}" if role else "")
    return sorted(api.list("Pod", namespace, labels), key=lambda pod: pod["metadata"]["creationTimestamp"])


def ready_pods(api: Api, namespace: str, rayjob: str, role: str) -> list[Object]:
    """The pods of a role of lorarl's that are ready, and are not being deleted."""
    found = [pod for pod in pods_of(api, namespace, rayjob) if pod["metadata"]["labels"].get("lorarl.io/role") == role]
    return [pod for pod in found if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]


def names(found: list[Object]) -> set[str]:
    """The names of pods."""
    return {pod["metadata"]["name"] for pod in found}


def end_container(
    api: Api, pod: Object, container: str, *, code: int, reason: str | None = None, message: str = ""
) -> Object:
    """A container ends; the pod continues while another container runs, and otherwise is Succeeded or Failed."""
    reason = reason or ("Completed" if code == 0 else "Error")
    ended = {"exitCode": code, "reason": reason, "message": message, "startedAt": _now(), "finishedAt": _now()}
    statuses = [
        {**status, "ready": False, "started": False, "state": {"terminated": ended}}
        if status["name"] == container
        else status
        for status in pod["status"]["containerStatuses"]
    ]
    codes = [status["state"].get("terminated", {}).get("exitCode") for status in statuses]
    phase = "Running" if None in codes else "Failed" if any(codes) else "Succeeded"
    return patch_status(api, pod, {"phase": phase, "containerStatuses": statuses}, Ready="ContainersNotReady")


def waits(api: Api, pod: Object, *, reason: str, message: str) -> Object:
    """All containers of a scheduled pod wait, for instance with ImagePullBackOff or CreateContainerConfigError."""
    waiting = {"waiting": {"reason": reason, "message": message}}
    statuses = [
        {
            "name": c["name"],
            "image": c["image"],
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 0,
            "state": waiting,
        }
        for c in pod["spec"]["containers"]
    ]
    return patch_status(api, pod, {"phase": "Pending", "containerStatuses": statuses}, Ready="ContainersNotReady")


def evict(api: Api, pod: Object) -> None:
    """Ask the eviction API, as `kubectl drain` does: it says why in the pod's conditions, and deletes it."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
    api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)


def fail_by_kubelet(
    api: Api, pod: Object, *, reason: str = "Evicted", message: str = "The node was low on resource: memory."
) -> Object:
    """The kubelet ends the pod itself (Evicted, Shutdown, ...): phase Failed with a reason, the object stays."""
    ended = {"exitCode": 137, "reason": "Error", "startedAt": _now(), "finishedAt": _now()}
    statuses = [
        {**s, "ready": False, "started": False, "state": {"terminated": ended}}
        for s in pod["status"].get("containerStatuses", [])
    ]
    status = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": statuses}
    return patch_status(api, pod, status, DisruptionTarget="TerminationByKubelet", message=message)


def post_event(api: Api, pod: Object, reason: str, message: str) -> None:
    """A Warning as the kubelet posts it, for instance FailedMount for a Secret that is not there."""
    metadata = pod["metadata"]
    involved = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "uid": metadata["uid"],
    }
    api.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
            "involvedObject": involved,
            "type": "Warning",
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet"},
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "count": 1,
        }
    )


def patch_status(api: Api, pod: Object, status: dict[str, Any], *, message: str = "", **reasons: str) -> Object:
    """Merge `status`. Each of `reasons` is a condition: DisruptionTarget becomes true, the others false."""
    kept = [c for c in pod["status"].get("conditions", []) if c["type"] not in reasons]
    new = [
        {
            "type": type_,
            "status": "True" if type_ == "DisruptionTarget" else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": _now(),
        }
        for type_, reason in reasons.items()
    ]
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    return api.patch("Pod", name, {"status": {**status, "conditions": kept + new}}, namespace, "status")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
