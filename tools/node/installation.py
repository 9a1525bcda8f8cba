"""Installs what a user installs, with the user's commands: KubeRay and lorarl, and an S3 server to write to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.kubectl import RealCluster
from support.cluster.processes import find_share, running, until
from support.helm import CHART, helm

MANIFESTS = Path(__file__).with_name("manifests")
STORE_KEYS = {"AWS_ACCESS_KEY_ID": "test-access", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
STORE_ENDPOINT = "http://s3.store:7070"
STORE = "store"
SYSTEM = "lorarl-system"
KUBERAY = "default"
"""The namespace that its manifests use."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Images:
    """Names of images as a cluster's nodes know them."""

    operator: str
    trainer: str
    store: str


@contextmanager
def forwarded(cluster: RealCluster, namespace: str, target: str, port: int, log: Path) -> Iterator[str]:
    """Run `kubectl port-forward` until the block ends; yield the address on this machine."""
    log.unlink(missing_ok=True)
    with running([*cluster.kubectl_command, "port-forward", "-n", namespace, target, f":{port}"], log) as process:
        said = until(
            30,
            f"{target} is forwarded",
            lambda: re.search(r"Forwarding from (127\.0\.0\.1:\d+)", log.read_text()),
            process,
        )
        yield said[1]


def install_kuberay(cluster: RealCluster) -> None:
    """Install KubeRay from its own manifests."""
    cluster.must(
        "apply", "--server-side", "--force-conflicts", "-k", str(find_share("ray-operator") / "config/default")
    )


def install_lorarl(cluster: RealCluster, operator_image: str, trainer_image: str) -> None:
    """Install lorarl from its chart. Existing pods are replaced: the image may have changed under the same name."""
    apply(cluster, namespace(SYSTEM, "restricted"))
    cluster.must("delete", "pods", "-n", SYSTEM, "--all", "--wait=false")
    upgrade_lorarl(cluster, operator_image, trainer_image)


def upgrade_lorarl(
    cluster: RealCluster,
    operator_image: str,
    trainer_image: str,
    chart: Path = CHART,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Install or upgrade lorarl from a chart, with these values and no earlier ones.

    Another version's chart leaves today's definitions as they are.
    """
    images = {"image": operator_image, "trainerImage": trainer_image}
    flags = [
        flag
        for key, image in images.items()
        for part, value in _parts(image)
        for flag in ("--set-string", f"{key}.{part}={value}")
    ]
    done = helm(
        *("upgrade", "--install", "lorarl", str(chart), "--namespace", SYSTEM, *flags),
        *(flag for key, value in (values or {}).items() for flag in ("--set-json", f"{key}={json.dumps(value)}")),
        *("--wait", "--timeout", "300s", "--set", f"crds.install={str(chart == CHART).lower()}"),
        kubeconfig=cluster.kubeconfig,
    )
    assert done.returncode == 0, done.stderr


def install_store(cluster: RealCluster, image: str) -> None:
    """Install an S3 server with the bucket `lorarl`."""
    manifests = (MANIFESTS / "store.yaml").read_text().replace("STORE_IMAGE", image)
    cluster.must("apply", "--server-side", "-f", "-", stdin=manifests)


def make_room(cluster: RealCluster, team: str, *secrets: Object, level: str = "baseline") -> None:
    """Make a namespace for a team's jobs, with the store's Secret and others; delete the jobs in it."""
    apply(cluster, namespace(team, level))
    apply(cluster, store_secret(), *secrets, namespace=team)
    cluster.must("delete", "lorarljobs", "--all", "-n", team, "--wait")


def apply(cluster: RealCluster, *manifests: Object, namespace: str = "default") -> None:
    """Apply objects with `kubectl apply`."""
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests}
    cluster.must("apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(listed))


def wait_available(cluster: RealCluster, namespace: str, deployment: str) -> None:
    """Return when all replicas of a Deployment are available."""
    available = "jsonpath={.status.conditions[?(@.type=='Available')].status}"
    until(
        120,
        f"deployment {deployment} is available",
        lambda: cluster.must("get", "deployment", deployment, "-n", namespace, "-o", available) == "True",
    )


def namespace(name: str, level: str) -> Object:
    """Return a namespace that enforces a pod security level."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
    }


def store_secret(name: str = "s3-keys", **changes: str) -> Object:
    """Return the Secret with which a job's pods reach the store."""
    data = {**STORE_KEYS, "AWS_ENDPOINT_URL": STORE_ENDPOINT, **changes}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def _parts(image: str) -> Iterator[tuple[str, str]]:
    repository, _, tag = image.rpartition(":")
    yield "repository", repository
    yield "tag", tag
