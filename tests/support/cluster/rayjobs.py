"""RayJobs written by hand, for tests of the platform itself; the operator's own come from its builders."""

from __future__ import annotations

from typing import Any

from support.cluster.client import Object
from support.cluster.kwok import RUNS

# A failed job's jobStatus is often still RUNNING: KubeRay sees the submitter end before it asks for the job's state.
DELETE_WORKERS_AT_THE_END = [
    {"policy": "DeleteWorkers", "condition": condition | {"ttlSeconds": 0}}
    for condition in ({"jobStatus": "SUCCEEDED"}, {"jobDeploymentStatus": "Failed"})
]


def rayjob(
    namespace: str,
    name: str,
    *,
    workers: int = 1,
    gpus: int = 1,
    image: str = RUNS,
    queue: str | None = None,
    **spec: Any,
) -> Object:
    """A RayJob in SidecarMode whose workers go when it ends; with `queue`, one for Kueue, whose whole cluster goes."""
    ending: dict[str, Any] = {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 0}
    if queue is None:
        ending = {"deletionStrategy": {"deletionRules": DELETE_WORKERS_AT_THE_END}}
    labels = {"labels": {"kueue.x-k8s.io/queue-name": queue}} if queue else {}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": namespace, **labels},
        "spec": {
            "entrypoint": "python -c 'print(1)'",
            "submissionMode": "SidecarMode",
            "backoffLimit": 0,
            **ending,
            "rayClusterSpec": {
                "rayVersion": "2.60.0",
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": _template("ray-head", image, {"cpu": "1", "memory": "1Gi"}),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": workers,
                        "minReplicas": workers,
                        "maxReplicas": workers,
                        "rayStartParams": {},
                        "template": _template(
                            "ray-worker", image, {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": str(gpus)}
                        ),
                    }
                ],
            },
            **spec,
        },
    }


def _template(container: str, image: str, resources: dict[str, str]) -> Object:
    containers = [{"name": container, "image": image, "resources": {"requests": resources, "limits": resources}}]
    # The namespace controller checks again for pods only after half the grace period, although kwok's go at once.
    return {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": containers}}
