"""All of Kubernetes and KubeRay that the operator needs, in one process tree on loopback. kwok plays nodes and pods.

with platform(folder, kueue=True) as p:
    p.api.create(rayjob)
    p.finish("default", "my-job-1", "SUCCEEDED")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.cluster import pods
from support.cluster.client import Api, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.controllers import controllers
from support.cluster.crds import install_crds
from support.cluster.kuberay import install_kuberay, kuberay
from support.cluster.kueue import install_kueue
from support.cluster.kueue import kueue as run_kueue
from support.cluster.kwok import add_node, kwok
from support.cluster.processes import Process
from support.cluster.ray_dashboard import RayDashboard, ray_dashboard


@dataclass(frozen=True)
class Platform:
    """A running platform."""

    cluster: Cluster
    dashboard: RayDashboard
    kuberay: Process
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def api(self) -> Api:
        """A client that may do anything."""
        return self.cluster.api

    def namespace(self, prefix: str = "test") -> str:
        """A new namespace in which pods can be made."""
        name = f"{prefix}-{next(self._numbers)}"
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.api.wait("ServiceAccount", "default", name, bool)
        return name

    def pods(self, namespace: str, rayjob: str, role: str | None = None) -> list[Object]:
        """The pods of a RayJob's newest cluster, see `pods.pods_of`."""
        return pods.pods_of(self.api, namespace, rayjob, role)

    def wait_running(self, namespace: str, rayjob: str, *, seconds: float = 20) -> Object:
        """The RayJob when its cluster is ready and its job runs."""

        def runs(job: Object) -> bool:
            status = job.get("status", {})
            return (status.get("jobDeploymentStatus"), status.get("jobStatus")) == ("Running", "RUNNING")

        return self.api.wait("RayJob", rayjob, namespace, runs, seconds=seconds)

    def finish(self, namespace: str, rayjob: str, status: str, message: str = "") -> None:
        """End the job as in SidecarMode: the dashboard says so, and the submitter ends with 0, or 1 for FAILED."""
        self.dashboard.set(namespace, rayjob, status, message)
        for head in self.pods(namespace, rayjob, pods.HEAD):
            pods.end_container(self.api, head, pods.SUBMITTER, code=1 if status == "FAILED" else 0)


@contextmanager
def platform(
    folder: Path,
    *,
    crds: Sequence[Path] = (),
    kueue: bool = False,
    audit: bool = False,
    admission: Sequence[str] = (),
    nodes: int = 2,
    gpus: int = 8,
) -> Iterator[Platform]:
    """Start everything with its files and logs in `folder`; end it with the block.

    Args:
        folder: A folder of this platform's own.
        crds: Files of definitions to install beside KubeRay's.
        kueue: Run Kueue too.
        audit: Keep the API server's audit log.
        admission: Admission plugins that are not on by default.
        nodes: How many simulated nodes there are at first, named node-0 and so on.
        gpus: GPUs of each.

    Raises:
        ToolMissingError: A program is not there; the text says how to get it.
    """
    with ExitStack() as stack:
        dashboard = stack.enter_context(ray_dashboard())
        cluster = stack.enter_context(control_plane(folder, service_accounts=True, audit=audit, admission=admission))
        install_kuberay(cluster)
        install_crds(cluster, *crds)
        configuration = install_kueue(cluster) if kueue else None
        stack.enter_context(controllers(cluster))
        stack.enter_context(kwok(cluster))
        process = stack.enter_context(kuberay(cluster, dashboard))
        if configuration is not None:
            stack.enter_context(run_kueue(cluster, configuration))
        for number in range(nodes):
            add_node(cluster, f"node-{number}", gpus=gpus)
        yield Platform(cluster, dashboard, process)
