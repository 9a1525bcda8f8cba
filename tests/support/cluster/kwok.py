"""kwok plays the nodes and their kubelets: pods that are scheduled to its nodes run without being run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster.client import is_ready
from support.cluster.control_plane import Cluster
from support.cluster.pods import patch_status
from support.cluster.processes import find, free_ports, listens, running, until

STAGES = Path(__file__).with_name("kwok_stages.yaml")
# Images that stand for a failure at the start of a pod: see STAGES.
RUNS = "test.invalid/runs:1"
HELD = "test.invalid/held:1"
CANNOT_BE_PULLED = "test.invalid/no-such-image:1"
ENDS_AT_ONCE = "test.invalid/ends-at-once:1"
REFUSED = "test.invalid/refused:1"
INIT_FAILS = "test.invalid/init-fails:1"
DEVICE_CLASS = "gpu.test.invalid"


@contextmanager
def kwok(cluster: Cluster) -> Iterator[None]:
    """Run kwok until the block ends."""
    (port,) = free_ports(1)
    command = [
        find("kwok"),
        f"--config={STAGES}",
        f"--kubeconfig={cluster.kubeconfig_of('kwok')}",
        f"--server-address=127.0.0.1:{port}",
    ]
    with running(command, cluster.folder / "kwok.log") as process:
        until(30, "kwok has started", lambda: listens(port), process)
        yield


def add_node(
    cluster: Cluster, name: str, *, gpus: int = 0, cpus: int = 256, memory: str = "2Ti", pods: int = 1000
) -> None:
    """A node that kwok plays; it returns when pods can be scheduled to it."""
    resources = {"cpu": str(cpus), "memory": memory, "pods": str(pods), "ephemeral-storage": "2Ti"} | (
        {"nvidia.com/gpu": str(gpus)} if gpus else {}
    )
    labels = {"type": "kwok", "kubernetes.io/hostname": name}
    status = {"allocatable": resources, "capacity": resources}
    cluster.api.create(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
    )

    def can_be_scheduled_to() -> bool:
        node = cluster.api.get("Node", name)
        ready = is_ready(node or {})
        return ready and node is not None and not node["spec"].get("taints")

    until(30, f"node {name} is ready", can_be_scheduled_to)


def add_devices(cluster: Cluster, node: str, count: int) -> None:
    """Devices of the DeviceClass DEVICE_CLASS on a node, as its driver would publish them."""
    api = "resource.k8s.io/v1"
    driven = {"cel": {"expression": f"device.driver == '{DEVICE_CLASS}'"}}
    chosen = {"metadata": {"name": DEVICE_CLASS}, "spec": {"selectors": [driven]}}
    cluster.api.create({"apiVersion": api, "kind": "DeviceClass", **chosen})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(count)]
    found = {"driver": DEVICE_CLASS, "nodeName": node, "pool": pool, "devices": devices}
    cluster.api.create({"apiVersion": api, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": found})


def lose_node(cluster: Cluster, name: str) -> None:
    """Kubernetes takes all pods off a node, and none goes there any more, as when it has been unreachable for long."""
    cluster.api.patch("Node", name, {"spec": {"taints": [{"key": "test.invalid/lost", "effect": "NoExecute"}]}})


def silence_node(cluster: Cluster, name: str) -> None:
    """The same for a node whose kubelet does not respond: what is deleted there stays, since nothing confirms its end.

    Such a node's pods are made unready, as Kubernetes' node controller would do, which waits for 10 minutes here.
    """
    cluster.api.patch("Node", name, {"metadata": {"labels": {"type": None}}})
    for pod in cluster.api.list("Pod", fields=f"spec.nodeName={name}"):
        patch_status(cluster.api, pod, {}, Ready="NodeNotReady")
    lose_node(cluster, name)


def mend_node(cluster: Cluster, name: str) -> None:
    """The node is as before."""
    cluster.api.patch("Node", name, {"metadata": {"labels": {"type": "kwok"}}, "spec": {"taints": None}})
