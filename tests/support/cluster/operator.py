"""Our operator as a separate process, under a ServiceAccount with only the rights that the chart gives it."""

from __future__ import annotations

import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.cluster.client import ApiError, Object
from support.cluster.control_plane import Cluster
from support.cluster.processes import Process, free_ports, until

ROOT = Path(__file__).parents[3]
RIGHTS = ROOT / "helm/lorarl/files/rights.yaml"
SYSTEM = "lorarl-system"
ACCOUNT = "lorarl-operator"
IMAGE = "test.invalid/runs:1"


@dataclass(frozen=True)
class Operator:
    """A running replica."""

    process: Process
    metrics_port: int
    probes_port: int

    def probe(self, path: str) -> tuple[int, str]:
        """Status and text of /healthz or /readyz; 0 while nothing answers."""
        return _read(self.probes_port, path)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """A metric's samples: labels and value of each."""
        status, text = _read(self.metrics_port, "/metrics")
        found = []
        if status == 200:
            lines = (re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line) for line in text.splitlines())
            found = [
                (dict(re.findall(r'(\w+)="([^"]*)"', match[1] or "")), float(match[2])) for match in lines if match
            ]
        return found

    @property
    def leads(self) -> bool:
        return self.metric("lorarl_operator_leader") == 1

    @property
    def resident_bytes(self) -> float:
        return self.metric("process_resident_memory_bytes")


def prepare(cluster: Cluster, namespaces: Sequence[str] = (), account: str = ACCOUNT, *, rights: Path = RIGHTS) -> Path:
    """The operator's ServiceAccount with its rights, in all namespaces or in some; its kubeconfig."""
    create(cluster, _object("v1", "Namespace", SYSTEM))
    create(cluster, _object("v1", "ServiceAccount", account, SYSTEM))
    rules = yaml.safe_load(rights.read_text())
    _grant(cluster, f"{account}-lease", rules["own"], SYSTEM, account)
    for namespace in namespaces:
        _grant(cluster, account, rules["jobs"], namespace, account)
    if not namespaces:  # An older version has no rights that are only of the whole cluster.
        _grant(cluster, account, [*rules["jobs"], *rules.get("cluster", ())], None, account)
    return cluster.write_kubeconfig(account, cluster.service_account_token(SYSTEM, account))


def grant_target(cluster: Cluster, target: str, account: str = ACCOUNT) -> None:
    """The rights of a target of `spec.publish`, which the chart gives only if its value says so."""
    _grant(cluster, f"{account}-{target}", yaml.safe_load(RIGHTS.read_text())[target], None, account)


@contextmanager
def operator(
    cluster: Cluster, kubeconfig: Path, name: str = "operator", *arguments: str, tree: Path = ROOT
) -> Iterator[Operator]:
    """Run a replica of this version, or of another one's work tree; its log is NAME.log in the cluster's folder."""
    metrics_port, probes_port = free_ports(2)
    process = launch(cluster, kubeconfig, name, metrics_port, probes_port, *arguments, tree=tree)
    try:
        one = Operator(process, metrics_port, probes_port)
        until(30, f"{name} answers its probes", lambda: one.probe("/healthz")[0], process)
        yield one
    finally:
        process.stop()


def launch(
    cluster: Cluster,
    kubeconfig: Path,
    name: str,
    metrics_port: int,
    probes_port: int,
    *arguments: str,
    tree: Path = ROOT,
) -> Process:
    """Start a replica and return at once."""
    command = [
        *(sys.executable, "-m", "lorarl_operator.main", f"--kubeconfig={kubeconfig}", f"--lease-namespace={SYSTEM}"),
        *(f"--trainer-image={IMAGE}", f"--metrics-port={metrics_port}", f"--probes-port={probes_port}"),
        *arguments,
    ]
    packages = ":".join(str(tree / one) for one in ("crds", "operator"))
    return Process(command, cluster.folder / f"{name}.log", {"PYTHONPATH": packages, "POD_NAME": name})


def wait_leader(*replicas: Operator, seconds: float = 30) -> Operator:
    """The replica that leads, as soon as one does."""
    return until(seconds, "a replica leads", lambda: next((one for one in replicas if one.leads), None))


def create(cluster: Cluster, manifest: Object) -> None:
    """Create an object, unless it is there."""
    try:
        cluster.api.create(manifest)
    except ApiError as error:
        if error.status != 409:
            raise


def quiet(seconds: float, count: Any) -> None:
    """Return when `count()` has not changed for so long; fails after some minutes."""
    last, since = count(), time.monotonic()

    def still() -> bool:
        nonlocal last, since
        if (current := count()) != last:
            last, since = current, time.monotonic()
        return time.monotonic() - since >= seconds

    until(60, "nothing changes any more", still)


def _grant(cluster: Cluster, name: str, rules: list[Object], namespace: str | None, account: str) -> None:
    kind = "Role" if namespace else "ClusterRole"
    version = "rbac.authorization.k8s.io/v1"
    create(cluster, {**_object(version, kind, name, namespace), "rules": rules})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    create(cluster, {**_object(version, f"{kind}Binding", name, namespace), "subjects": [subject], "roleRef": role})


def _object(version: str, kind: str, name: str, namespace: str | None = None) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}),
    }


def _read(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""
