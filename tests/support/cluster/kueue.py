"""The real Kueue, with its webhooks, for RayJobs and Jobs, both of which it manages as it is installed."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from support.cluster.client import Api, Object
from support.cluster.control_plane import Cluster
from support.cluster.crds import LOADER, wait_until_served
from support.cluster.kubectl import RealCluster
from support.cluster.processes import Process, find, find_share, free_ports, running, until

NAMESPACE = "kueue-system"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
# Webhooks of other groups guard kinds that are not installed here, or pods, which Kueue is not asked to manage.
WEBHOOK_GROUPS = {"kueue.x-k8s.io", "ray.io", "batch"}
# Kueue insists on finding these converted by its webhook.
CONVERTED = {
    f"{plural}.kueue.x-k8s.io"
    for plural in ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters")
}
READY_SECONDS = 60.0


def install_kueue(cluster: Cluster) -> Path:
    """Kueue's definitions and webhooks; the path of the configuration with which it is to run."""
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
        "integrations": {"frameworks": ["batch/job", "ray.io/rayjob", "ray.io/raycluster"]},
        # A server for another API, which would write its certificate into the working folder.
        "featureGates": {"VisibilityOnDemand": False},
    }
    path = folder / "configuration.json"
    path.write_text(json.dumps(configuration))
    return path


@contextmanager
def kueue(cluster: Cluster, configuration: Path) -> Iterator[Process]:
    """Run Kueue until the block ends. KubeRay's definitions must be there: it manages their kinds."""
    environment = {"KUBECONFIG": str(cluster.kubeconfig_of("kueue"))}
    with running([find("kueue"), f"--config={configuration}"], cluster.folder / "kueue.log", environment) as process:
        until(READY_SECONDS, "Kueue's webhooks answer", lambda: webhooks_answer(cluster), process)
        yield process


def add_queue(
    cluster: Cluster | RealCluster, namespace: str, name: str, quota: dict[str, str], *, preempts: bool = True
) -> None:
    """A LocalQueue and a ClusterQueue, both named `name`, with one flavour and a quota such as {"cpu": "8"}.

    The names must be new in the cluster; resources that are not named in `quota` are not admitted at all.
    """
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}
    cluster_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority" if preempts else "Never"},
            "resourceGroups": [_resource_group(name, quota)],
        },
    }
    for manifest in (flavor, cluster_queue):
        cluster.api.create(manifest)
    add_local_queue(cluster, namespace, name, name)


def set_quota(cluster: Cluster | RealCluster, name: str, quota: dict[str, str]) -> None:
    """Give a queue of `add_queue` another quota."""
    cluster.api.patch("ClusterQueue", name, {"spec": {"resourceGroups": [_resource_group(name, quota)]}})


def send_to_other_clusters(cluster: Cluster, name: str) -> None:
    """Give a queue of `add_queue` the admission check of MultiKueue."""
    check = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "AdmissionCheck",
        "metadata": {"name": name},
        "spec": {"controllerName": "kueue.x-k8s.io/multikueue"},
    }
    cluster.must("apply", "-f", "-", stdin=json.dumps(check))
    rule = {"admissionChecksStrategy": {"admissionChecks": [{"name": name}]}}
    cluster.api.patch("ClusterQueue", name, {"spec": rule})


def _resource_group(flavor: str, quota: dict[str, str]) -> Object:
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    return {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}


def add_local_queue(cluster: Cluster | RealCluster, namespace: str, name: str, cluster_queue: str) -> None:
    """A namespace's LocalQueue. When this returns, Kueue knows it; before, Kueue would ignore its jobs."""
    local_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"clusterQueue": cluster_queue},
    }
    cluster.api.create(local_queue)
    cluster.api.wait("LocalQueue", name, namespace, _is_active, seconds=READY_SECONDS)


def add_priority_class(cluster: Cluster | RealCluster, name: str, value: int) -> None:
    """A WorkloadPriorityClass."""
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    cluster.api.apply({**head, "metadata": {"name": name}, "value": value, "description": ""})


def webhooks_answer(cluster: Cluster | RealCluster) -> bool:
    """A dry run passes Kueue's mutating webhook only when it is there."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
    try:
        cluster.api.request("POST", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors?dryRun=All", flavor)
    except Exception:  # noqa: BLE001 -- refused while it starts
        return False
    return True


def _is_active(queue: Object) -> bool:
    return any(c["type"] == "Active" and c["status"] == "True" for c in queue.get("status", {}).get("conditions", []))


def _make_certificates(folder: Path) -> None:
    """Kueue uses its Secret's certificates if they are valid for months (otherwise it would wait for a pod's volume).

    The authority's key must have the traditional RSA form.
    """
    names = "DNS:kueue-webhook-service.kueue-system.svc,IP:127.0.0.1"
    sign = ["req", "-x509", "-days", "3650"]
    extensions = ["-addext", "extendedKeyUsage=serverAuth", "-addext", "basicConstraints=critical,CA:false"]
    extensions += ["-addext", f"subjectAltName={names}"]
    for arguments in (
        ["genrsa", "-traditional", "-out", "ca.key", "2048"],
        [
            *sign,
            "-key",
            "ca.key",
            "-out",
            "ca.crt",
            "-subj",
            "/O=kueue/CN=kueue-ca",
            "-addext",
            "subjectAltName=DNS:kueue-ca",
        ],
        ["genrsa", "-traditional", "-out", "tls.key", "2048"],
        [
            *sign,
            "-CA",
            "ca.crt",
            "-CAkey",
            "ca.key",
            "-key",
            "tls.key",
            "-out",
            "tls.crt",
            "-subj",
            "/CN=kueue",
            *extensions,
        ],
    ):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def _install(cluster: Cluster, folder: Path, url: str) -> None:
    """Kueue's definitions and webhooks. Without a Service network, the API server calls the webhooks on loopback."""
    bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()

    def on_loopback(path: str) -> Object:
        return {"url": f"{url}{path}", "caBundle": bundle}

    config = find_share("kueue") / "config/components"
    definitions = [yaml.load(path.read_text(), LOADER) for path in sorted((config / "crd/bases").glob("*.yaml"))]
    for definition in definitions:
        spec = definition["spec"]
        # The old version v1beta1 would only keep the API server busy.
        spec["versions"] = [version for version in spec["versions"] if version["storage"]]
        if definition["metadata"]["name"] in CONVERTED:
            webhook = {"clientConfig": on_loopback("/convert"), "conversionReviewVersions": ["v1"]}
            spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        cluster.api.create(definition)
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    data = {
        name: base64.b64encode((folder / name).read_bytes()).decode()
        for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")
    }
    secret = {"metadata": {"name": "kueue-webhook-server-cert", "namespace": NAMESPACE}, "data": data}
    cluster.api.create({"apiVersion": "v1", "kind": "Secret", **secret})
    for configuration in yaml.load_all((config / "webhook/manifests.yaml").read_text(), LOADER):
        configuration["metadata"]["name"] = "kueue-" + configuration["metadata"]["name"]
        kept = [
            w
            for w in configuration["webhooks"]
            if {group for rule in w["rules"] for group in rule["apiGroups"]} <= WEBHOOK_GROUPS
        ]
        configuration["webhooks"] = [
            {**w, "clientConfig": on_loopback(w["clientConfig"]["service"]["path"])} for w in kept
        ]
        cluster.api.create(configuration)
    wait_until_served(cluster, [definition["metadata"]["name"] for definition in definitions])


def workload_of(api: Api, namespace: str, ray_job: str) -> tuple[str, str]:
    """The uid of a RayJob's only Workload, and since when Kueue admits it."""
    (found,) = [
        one for one in api.list("Workload", namespace) if one["metadata"]["ownerReferences"][0]["name"] == ray_job
    ]
    (admitted,) = [one for one in found["status"]["conditions"] if one["type"] == "Admitted"]
    assert admitted["status"] == "True", found
    return found["metadata"]["uid"], admitted["lastTransitionTime"]
