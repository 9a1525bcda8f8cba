"""Kueue in a real cluster, from its own manifests."""

from __future__ import annotations

from typing import Any

import yaml

from node.builds import tool_version
from node.installation import wait_available
from support.cluster.client import Object
from support.cluster.crds import LOADER
from support.cluster.kubectl import RealCluster
from support.cluster.kueue import NAMESPACE, PRIORITY_LABEL, QUEUE_LABEL, READY_SECONDS, webhooks_answer
from support.cluster.processes import find_share, until

MANAGER = "kueue-controller-manager"


def install_kueue(cluster: RealCluster) -> None:
    """Kueue as its release installs it. Returns when its webhooks answer."""
    text = cluster.must("kustomize", str(find_share("kueue") / "config/default"))
    manifests = [_of_the_release(one) for one in yaml.load_all(text, LOADER) if one]
    cluster.must("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=yaml.safe_dump_all(manifests))
    wait_available(cluster, NAMESPACE, MANAGER)
    until(READY_SECONDS, "Kueue's webhooks answer", lambda: webhooks_answer(cluster))


def _of_the_release(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifests pull the image of a developer's last build, and ask for a quarter of a node with two CPUs."""
    if manifest["kind"] == "Deployment":
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        container |= {
            "image": f"registry.k8s.io/kueue/kueue:{tool_version('kueue')}",
            "imagePullPolicy": "IfNotPresent",
        }
        container["resources"]["requests"]["cpu"] = "100m"
    return manifest


def small_job(name: str, image: str, queue: str, priority: str | None = None) -> Object:
    """A Job that ends at once, and does not fit beside the example's job in its quota of 10 GiB."""
    limits = {"cpu": "100m", "memory": "4Gi"}
    resources = {"requests": limits, "limits": limits}
    container = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": ["true"]}
    labels = {QUEUE_LABEL: queue} | ({PRIORITY_LABEL: priority} if priority else {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "suspend": True,
            "template": {"spec": {"restartPolicy": "Never", "containers": [{**container, "resources": resources}]}},
        },
    }
