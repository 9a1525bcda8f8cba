"""The real Kueue, with its webhooks, for RayJobs."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from support.cluster.crds import wait_until_served
from support.cluster.processes import Process, find, find_share, free_ports, running, until

NAMESPACE = "kueue-system"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
# Webhooks of other groups guard kinds that are not installed here, or kinds (pods, jobs) that Kueue is not asked to manage.
WEBHOOK_GROUPS = {"kueue.x-k8s.io", "ray.io"}
READY_SECONDS = 60.0


@contextmanager
def kueue(cluster: Cluster) -> Iterator[Process]:
    """Install Kueue and run it until the block ends. KubeRay's custom resource definitions must be there: it manages their kinds."""
    webhook_port, metrics, probes = free_ports(3)
    folder = cluster.folder / "kueue"
    folder.mkdir()
    _make_certificates(folder)
    _install(cluster, folder, f"https://127.0.0.1:{webhook_port}")
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{probes}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": webhook_port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["ray.io/rayjob", "ray.io/raycluster"]},
        # A server for another API, which would write its certificate into the working folder.
        "featureGates": {"VisibilityOnDemand": False},
    }
    path = folder / "configuration.json"
    path.write_text(json.dumps(configuration))
    environment = {"KUBECONFIG": str(cluster.kubeconfig_of("kueue"))}
    with running([find("kueue"), f"--config={path}"], cluster.folder / "kueue.log", environment) as process:
        until(READY_SECONDS, "Kueue's webhooks answer", lambda: _webhooks_answer(cluster), process)
        yield process


def add_queue(cluster: Cluster, namespace: str, name: str, quota: dict[str, str], *, preempts: bool = True) -> None:
    """A LocalQueue and a ClusterQueue, both named `name`, with one flavour and this quota, as {"cpu": "8", "nvidia.com/gpu": "8"}.

    The names must be new in the cluster; resources that are not named in `quota` are not admitted at all.
    """
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    cluster_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority" if preempts else "Never"},
            "resourceGroups": [{"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}],
        },
    }
    local_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": name},
    }
    for manifest in (flavor, cluster_queue, local_queue):
        cluster.api.create(manifest)
    cluster.api.wait("LocalQueue", name, namespace, _is_active)


def add_priority_class(cluster: Cluster, name: str, value: int) -> None:
    """A WorkloadPriorityClass."""
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    cluster.api.apply({**head, "metadata": {"name": name}, "value": value, "description": ""})


def _is_active(queue: Object) -> bool:
    return any(c["type"] == "Active" and c["status"] == "True" for c in queue.get("status", {}).get("conditions", []))


def _make_certificates(folder: Path) -> None:
    """Kueue takes the certificates of its Secret when they are still good for months; else it would wait for a pod's volume."""
    names = "DNS:kueue-webhook-service.kueue-system.svc,IP:127.0.0.1"
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650"]
    ca = ["-subj", "/O=kueue/CN=kueue-ca", "-addext", "subjectAltName=DNS:kueue-ca", "-keyout", "ca.key", "-out", "ca.crt"]
    server = [*("-CA", "ca.crt", "-CAkey", "ca.key", "-subj", "/CN=kueue", "-addext", f"subjectAltName={names}")]
    server += ["-addext", "extendedKeyUsage=serverAuth", "-addext", "basicConstraints=critical,CA:false"]
    for arguments in (ca, [*server, "-keyout", "tls.key", "-out", "tls.crt"]):
        subprocess.run(["openssl", "req", "-x509", *new_key, *arguments], cwd=folder, check=True, capture_output=True)


def _install(cluster: Cluster, folder: Path, url: str) -> None:
    """What Kueue's own manifests hold beside its Deployment, its Services and the rights of its ServiceAccount."""
    rendered = subprocess.run(
        [cluster.kubectl_path, "kustomize", str(find_share("kueue") / "config/default")], capture_output=True, text=True, check=True
    ).stdout
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    kept: list[Object] = []
    for manifest in yaml.load_all(rendered, loader):
        match manifest["kind"]:
            case "Namespace":
                kept.insert(0, manifest)
            case "CustomResourceDefinition":
                if conversion := manifest["spec"].get("conversion", {}).get("webhook"):
                    _reach_by_url(conversion, url, bundle)
                kept.append(manifest)
            case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
                webhooks = [w for w in manifest["webhooks"] if {g for rule in w["rules"] for g in rule["apiGroups"]} <= WEBHOOK_GROUPS]
                for webhook in webhooks:
                    _reach_by_url(webhook, url, bundle)
                kept.append({**manifest, "webhooks": webhooks})
    data = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")}
    secret = {"metadata": {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE}, "data": data}
    kept.append({"apiVersion": "v1", "kind": "Secret", **secret})
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": kept})
    cluster.must("apply", "--server-side", "-f", "-", stdin=items)
    wait_until_served(cluster, [manifest["metadata"]["name"] for manifest in kept if manifest["kind"] == "CustomResourceDefinition"])


def _reach_by_url(webhook: dict[str, Any], url: str, bundle: str) -> None:
    """Here is no Service network: the API server is to call the webhook on loopback."""
    path = webhook["clientConfig"]["service"]["path"]
    webhook["clientConfig"] = {"url": f"{url}{path}", "caBundle": bundle}


def _webhooks_answer(cluster: Cluster) -> bool:
    """A dry run passes Kueue's mutating webhook only when it is there."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        cluster.api.request("POST", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors?dryRun=All", flavor)
    except Exception:  # noqa: BLE001 -- refused while it starts
        return False
    return True
