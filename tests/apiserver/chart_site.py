"""A cluster for tests of the chart: it installs, upgrades and uninstalls releases, and reads permissions."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.client import Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.controllers import controllers
from support.cluster.crds import wait_until_served
from support.cluster.kuberay import install_kuberay
from support.cluster.processes import find, find_share, until
from support.cluster.tools import tools_or_skip
from support.helm import CHART, flags, helm

CRD = "lorarljobs.lorarl.io"
SWEEPS = "lorarlsweeps.lorarl.io"
SCHEDULES = "lorarlschedules.lorarl.io"
YOUNGER = (SWEEPS, SCHEDULES)
"""Definitions that older charts lack."""
CRDS = (CRD, "lorarljobtemplates.lorarl.io", "clusterlorarljobtemplates.lorarl.io", *YOUNGER)
NAMESPACE = "lorarl-system"
INSTANCE = "app.kubernetes.io/instance=lorarl"
JOB: Object = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "LoRARLJob",
    "spec": {
        "model": {"uri": "s3://team/base"},
        "adapter": {"targetModules": ["all-linear"]},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": "s3://team/train.jsonl"}},
        "checkpoint": {"uri": "s3://team/checkpoints"},
    },
}


@dataclass(frozen=True)
class Site:
    """A cluster with KubeRay's kinds, and helm's answer before they were installed."""

    cluster: Cluster
    without_kuberay: subprocess.CompletedProcess[str]
    left_by_refusal: list[str]

    def helm(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return helm(*arguments, kubeconfig=self.cluster.kubeconfig)

    @contextmanager
    def release(self, values: dict[str, Any] | None = None, chart: Path = CHART) -> Iterator[str]:
        """Install the chart and yield helm's output. At the end everything is removed, also what helm keeps."""
        done = self.helm("install", "lorarl", str(chart), "-n", NAMESPACE, "--create-namespace", *flags(values or {}))
        try:
            assert done.returncode == 0, done.stderr
            yield done.stdout
        finally:
            self.helm("uninstall", "lorarl", "-n", NAMESPACE, "--ignore-not-found")
            self.delete_crds()

    def delete_crds(self) -> None:
        """Delete the chart's CRDs.

        One that is deleted before its objects can be listed may stay for minutes: the API server loses its retry.
        """
        found = [self.cluster.api.get("CustomResourceDefinition", name) for name in CRDS]
        metadata = [one["metadata"] for one in found if one is not None]
        kept = [one["name"] for one in metadata if "deletionTimestamp" not in one]
        wait_until_served(self.cluster, kept)
        if kept:
            self.cluster.must("delete", "crd", *kept, "--wait=false")
        for name in CRDS:
            self.cluster.api.wait_gone("CustomResourceDefinition", name)

    def upgrade(self, values: dict[str, Any] | None = None, chart: Path = CHART) -> None:
        done = self.helm("upgrade", "lorarl", str(chart), "-n", NAMESPACE, *flags(values or {}))
        assert done.returncode == 0, done.stderr

    def uninstall(self) -> None:
        done = self.helm("uninstall", "lorarl", "-n", NAMESPACE)
        assert done.returncode == 0, done.stderr

    def of_release(self) -> list[str]:
        """All objects in the cluster with the release's label, as `kind/name`."""
        return everything(self.cluster, INSTANCE)

    def job(self, name: str, namespace: str = "default") -> Object:
        return self.cluster.api.create({**JOB, "metadata": {"name": name, "namespace": namespace}})


@contextmanager
def chart_site(folder: Path) -> Iterator[Site]:
    """Start a cluster with Kubernetes' controllers, which had no KubeRay when helm was first asked."""
    with tools_or_skip():
        find("helm")
        find_share("ray-operator")
        with control_plane(folder, service_accounts=True) as cluster, controllers(cluster):
            refused = helm(
                "install", "lorarl", str(CHART), "-n", NAMESPACE, "--create-namespace", kubeconfig=cluster.kubeconfig
            )
            left = everything(cluster, INSTANCE)
            install_kuberay(cluster)
            for namespace in ("team-a", "team-b"):
                cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            yield Site(cluster, refused, left)


def everything(cluster: Cluster, labels: str) -> list[str]:
    kinds = cluster.must("api-resources", "--verbs=list", "-o", "name").split()
    # Helm's own Secret and the objects that controllers create are not part of the chart.
    kinds = [kind for kind in kinds if not kind.startswith(("events", "endpoint", "componentstatuses"))]
    return cluster.must("get", ",".join(kinds), "-A", "-l", labels, "-o", "name", "--ignore-not-found").split()


def older_chart(folder: Path) -> Path:
    """A chart of an older version: with another CRD, and without those of sweeps and schedules."""
    chart = folder / "lorarl"
    shutil.copytree(CHART, chart)
    for path, old, new in (
        ("Chart.yaml", "ersion: 0.1.0", "ersion: 0.0.9"),
        ("files/lorarl.io_lorarljobs.yaml", "name: Reward", "name: Score"),
    ):
        text = (chart / path).read_text()
        assert old in text
        (chart / path).write_text(text.replace(old, new))
    for name in YOUNGER:
        (chart / f"files/lorarl.io_{name.removesuffix('.lorarl.io')}.yaml").unlink()
    return chart


def columns(cluster: Cluster) -> list[str]:
    crd = cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    return [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]


def established(site: Site, crds: Sequence[str] = CRDS) -> None:
    wait_until_served(site.cluster, list(crds))


def can(site: Site, user: str, verb: str, resource: str, namespace: str) -> bool:
    kind, _, part = resource.partition("/")
    return (
        site.cluster.kubectl(
            "auth", "can-i", verb, kind, f"--subresource={part}", "-n", namespace, f"--as={user}", "-q"
        ).returncode
        == 0
    )


def require_rights(site: Site, verb: str, resource: str, allowed: dict[str, bool], user: str = "") -> None:
    """Wait until a user, usually the operator, may do this in exactly the namespaces where it should."""
    until(
        10,
        f"{verb} {resource}: {allowed}",
        lambda: {name: can(site, user or account(), verb, resource, name) for name in allowed} == allowed,
    )


def account(namespace: str = NAMESPACE) -> str:
    return f"system:serviceaccount:{namespace}:operator-lorarl"


def crd_version(site: Site) -> tuple[int, Any]:
    crd = site.cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    return crd["metadata"]["generation"], crd["metadata"].get("labels")


def crd_owner(site: Site) -> str:
    """The namespace of the release that owns the CRD."""
    crd = site.cluster.api.get("CustomResourceDefinition", CRD)
    assert crd is not None
    namespace: str = crd["metadata"]["annotations"]["meta.helm.sh/release-namespace"]
    return namespace


def refuses_older(site: Site, definitions: str) -> bool:
    done = site.cluster.kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-", stdin=definitions
    )
    return done.returncode != 0 and "It would remove the newer fields from all jobs" in done.stderr
