"""Evictions that a pod caused itself, by more disk or memory than it had asked for.

The kubelet says so only in its message (pkg/kubelet/eviction/helpers.go). Without a higher request or limit, the next
attempt would end the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lorarl_api.quantities import quantity
from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.reasons import Ended

_VOLUME = re.compile(r'Usage of EmptyDir volume "([^"]+)" exceeds the limit')
_OWN_LIMIT = re.compile("exceeded its local ephemeral storage limit|local storage usage exceeds the total limit")
_USAGE = re.compile(r"Container (\S+) was using (\S+), request is (\S+), has larger consumption of ([a-z-]+)")
_OUR_DISKS = frozenset({"cache", "scratch"})
_SHARED_MEMORY = "shared-mem"
_FIELDS = {
    "head": ("cluster.head.disk", "cluster.head.memory"),
    "environment": ("cluster.environments.disk", "cluster.environments.memory"),
}
"""For disk and memory of a pod, by its role; those of all others are the same."""


def own_usage(pod: Pod) -> tuple[Ended, str] | None:
    """The reason and the fix if the kubelet evicted this pod for what it used itself; otherwise None."""
    message = f"{pod.message} {pod.disruption_message}"
    disk, memory = _FIELDS.get(pod.role, ("cluster.diskPerNode", "cluster.memoryPerNode"))
    more_disk = f"Raise {disk}, or mount a larger volume at /var/cache/lorarl with cluster.podTemplateOverrides."
    if volume := _VOLUME.search(message):
        if volume[1] == _SHARED_MEMORY:
            return Ended.OUT_OF_MEMORY, "Raise cluster.sharedMemory."
        if volume[1] in _OUR_DISKS:
            return Ended.DISK_FULL, more_disk
        return Ended.DISK_FULL, f"Raise the sizeLimit of volume {volume[1]} in cluster.podTemplateOverrides."
    above = set(_above_request(pod, message))
    if _OWN_LIMIT.search(message) or "ephemeral-storage" in above:
        return Ended.DISK_FULL, more_disk
    if "memory" in above:
        return Ended.OUT_OF_MEMORY, f"Raise {memory}."
    return None


def _above_request(pod: Pod, message: str) -> Iterator[str]:
    """What Ray's container used more of than it had requested, when its node ran low on it."""
    for name, used, requested, resource in _USAGE.findall(message):
        amount, request = quantity(used), quantity(requested)
        if name == f"ray-{pod.role}" and amount is not None and request is not None and amount > request:
            yield resource
