"""Where the tests take place: the cluster, its GPUs, the example that is trained, and how GPUs' memory was before."""

from __future__ import annotations

import subprocess
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.real_cluster.example import Example

FREE_SECONDS = 60.0
"""From the end of a job until its pods have gone, and their processes with the GPUs' memory."""


@dataclass(frozen=True)
class Ground:
    """See the module.

    Attributes:
        cluster: The cluster.
        gpus: How many GPUs its node has; 0 in a rehearsal.
        example: What is trained.
        mounted: Changes of a manifest by which its pods have the machine's stack.
        out: For what was seen.
        memory_before: MiB in use on each GPU before any job.
    """

    cluster: RealCluster
    gpus: int
    example: Example
    mounted: Object
    out: Path
    memory_before: tuple[int, ...]

    def manifest(self, name: str, changes: Object | None = None) -> Object:
        """The example under another name, with all GPUs, and `changes` of its spec made.

        No memory is asked for: a virtual machine's may grow with its use, and the kubelet knows what it was at first.
        """
        # A change may be of what is mounted, which other jobs mount too.
        here = {"cluster.gpusPerNode": self.gpus, "cluster.memoryPerNode": None, **deepcopy(self.mounted)}
        return self.example.manifest(name, {**here, **(changes or {})})

    def gpus_are_free(self) -> None:
        """Return when the GPUs have as much memory in use as before."""
        until(
            FREE_SECONDS,
            f"GPU memory is {self.memory_before} MiB again",
            lambda: gpu_memory(self.gpus) == self.memory_before,
        )


def gpu_memory(gpus: int) -> tuple[int, ...]:
    """MiB in use on each GPU, as nvidia-smi says."""
    if not gpus:
        return ()
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return tuple(map(int, subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()))
