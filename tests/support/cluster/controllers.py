"""Kubernetes' controllers (garbage collection, namespaces, Jobs, ServiceAccounts, node failures) and its scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from support.cluster.control_plane import READY_SECONDS, SERVICE_ACCOUNT_KEY, Cluster
from support.cluster.processes import find, free_ports, running

# kwok renews its nodes' leases only now and then. A node that was declared lost while this machine was busy stays lost.
# Tests of lost nodes taint them themselves.
CONTROLLER_MANAGER_FLAGS = ("--node-monitor-grace-period=10m", "--node-monitor-period=1s", "--concurrent-gc-syncs=50")


@contextmanager
def controllers(cluster: Cluster) -> Iterator[None]:
    """Run kube-controller-manager and kube-scheduler until the block ends. It starts when `default` can have pods.

    Custom resource definitions should exist before: the garbage collector looks for new kinds only every 30 s, as in
    any cluster.

    Raises:
        ToolMissingError: A binary is not there.
    """
    manager_port, scheduler_port = free_ports(2)
    manager = [
        *(
            find("kube-controller-manager"),
            *_flags(cluster, "kube-controller-manager", manager_port),
            *CONTROLLER_MANAGER_FLAGS,
        ),
        *(f"--service-account-private-key-file={cluster.folder / SERVICE_ACCOUNT_KEY}", f"--root-ca-file={cluster.ca}"),
    ]
    scheduler = [find("kube-scheduler"), *_flags(cluster, "kube-scheduler", scheduler_port)]
    with ExitStack() as stack:
        stack.enter_context(running(manager, cluster.folder / "kube-controller-manager.log"))
        stack.enter_context(running(scheduler, cluster.folder / "kube-scheduler.log"))
        cluster.api.wait("ServiceAccount", "default", "default", bool, seconds=READY_SECONDS)
        yield


def _flags(cluster: Cluster, name: str, port: int) -> list[str]:
    return [
        *(
            f"--kubeconfig={cluster.kubeconfig_of(name)}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
        ),
        *(f"--cert-dir={cluster.folder}/{name}", "--kube-api-qps=1000", "--kube-api-burst=2000"),
    ]
