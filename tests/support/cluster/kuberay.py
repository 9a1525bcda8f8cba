"""KubeRay's own operator, with its custom resource definitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from support.cluster.crds import install_crds, wait_until_served
from support.cluster.processes import Process, find, find_share, free_ports, running
from support.cluster.ray_dashboard import RayDashboard

ENVIRONMENT = {
    # kwok's pods run nothing: an init container that waits for Ray, and probes of it, say nothing.
    "ENABLE_INIT_CONTAINER_INJECTION": "false",
    "ENABLE_PROBES_INJECTION": "false",
    # The dashboards' answers come through a proxy (see ray_dashboard.py); the API server is asked directly.
    "NO_PROXY": "127.0.0.1",
}
RAYSERVICE: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rayservices.ray.io"},
    "spec": {
        "group": "ray.io",
        "scope": "Namespaced",
        "names": {
            "kind": "RayService",
            "listKind": "RayServiceList",
            "plural": "rayservices",
            "singular": "rayservice",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def install_kuberay(cluster: Cluster) -> None:
    """The custom resource definitions of KubeRay, without its operator.

    RayJob and RayCluster lack their old version v1alpha1. RayService, which KubeRay watches and no test makes, has no
    schema. All of it would be 4 MB, which keep the API server busy for ten seconds.
    """
    bases = find_share("ray-operator") / "config/crd/bases"
    cluster.api.create(RAYSERVICE)
    install_crds(cluster, bases / "ray.io_rayclusters.yaml", bases / "ray.io_rayjobs.yaml", version="v1")
    wait_until_served(cluster, [RAYSERVICE["metadata"]["name"]])


@contextmanager
def kuberay(cluster: Cluster, dashboard: RayDashboard, *, concurrency: int = 10) -> Iterator[Process]:
    """Run KubeRay's operator until the block ends; `install_kuberay` comes first.

    Args:
        cluster: Where.
        dashboard: What answers for the pods' dashboards.
        concurrency: Reconciles at a time (KubeRay's own default is 1).
    """
    metrics, probes = free_ports(2)
    command = [
        *(
            find("ray-operator"),
            f"--metrics-addr=127.0.0.1:{metrics}",
            f"--health-probe-bind-address=127.0.0.1:{probes}",
        ),
        *("--enable-leader-election=false", f"--reconcile-concurrency={concurrency}", "--qps=500", "--burst=1000"),
    ]
    environment = {**ENVIRONMENT, "KUBECONFIG": str(cluster.kubeconfig_of("kuberay")), "HTTP_PROXY": dashboard.url}
    with running(command, cluster.folder / "kuberay.log", environment) as process:
        yield process
