"""What the containers of a job's pods request."""

from __future__ import annotations

from typing import Any

from lorarl_api.v1alpha1 import CPUS_PER_GPU, EnvironmentPodsSpec, HeadSpec, LoRARLJobSpec

Resources = dict[str, Any]

_GIB_PER_GPU = 64
_DISK = "40Gi"
"""Requests of a GPU job that names none. Without any, its pods get the least CPU time and are the first to be evicted.

They have no limits, so that a wrong guess ends no job.
"""


def head_resources(spec: LoRARLJobSpec) -> Resources:
    """Requests and limits of the head's container."""
    return _without_gpus(spec.cluster.head)


def environment_resources(spec: LoRARLJobSpec) -> Resources:
    """Requests and limits of the container of a pod for the job's environment."""
    pods = spec.cluster.environments
    assert pods is not None, "the job has pods for its environment"
    return _without_gpus(pods)


def _without_gpus(part: HeadSpec | EnvironmentPodsSpec) -> Resources:
    requests = {"cpu": part.cpus, "memory": part.memory} | ({"ephemeral-storage": part.disk} if part.disk else {})
    return {"requests": requests, "limits": {"memory": part.memory}}


def worker_resources(spec: LoRARLJobSpec, *, queued: bool) -> Resources:
    """Requests and limits of a worker's container."""
    found = _resources(spec, spec.cluster.gpus_per_node, queued=queued)
    if rdma := spec.cluster.rdma:
        for kind in ("requests", "limits"):
            found[kind] = found.get(kind, {}) | {rdma.resource_name: rdma.count}
    return found


def engine_resources(spec: LoRARLJobSpec, *, queued: bool) -> Resources:
    """Requests and limits of a separate engine's container."""
    engines = spec.separate_engines
    assert engines is not None, "the job has separate engines"
    return _resources(spec, engines.tensor_parallel_size if spec.on_gpu else 0, queued=queued)


def _resources(spec: LoRARLJobSpec, gpus: int, *, queued: bool) -> Resources:
    """Requests and limits of a container with so many GPUs.

    Kueue refuses a job that requests something that its queue does not cover, and few queues cover disks.
    """
    cluster = spec.cluster
    requests: Resources = {}
    limits: Resources = {}
    if cpus := cluster.cpus_per_node or (str(CPUS_PER_GPU * gpus) if gpus else None):
        requests["cpu"] = cpus
    if cluster.memory_per_node:
        requests["memory"] = limits["memory"] = cluster.memory_per_node
    elif gpus:
        requests["memory"] = f"{_GIB_PER_GPU * gpus}Gi"
    if disk := cluster.disk_per_node or (_DISK if gpus and not queued else None):
        requests["ephemeral-storage"] = disk
    if gpus and cluster.gpu_resource and not cluster.gpu_claim:
        requests[cluster.gpu_resource] = limits[cluster.gpu_resource] = gpus
    return {kind: values for kind, values in (("requests", requests), ("limits", limits)) if values}
