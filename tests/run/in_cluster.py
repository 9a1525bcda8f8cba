"""A LoRARLJob on a real API server, with its trainer as in pods: the job's ServiceAccount and the mounted manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lorarl_api.v1alpha1 import ClusterSpec
from lorarl_operator.decide import parse
from lorarl_operator.decide.settings import Settings
from lorarl_operator.manifests.access import grants, needs
from run.command import Running
from run.jobs import NAME, Job
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import CRD, install_crds
from support.tcp_gate import TcpGate

NAMESPACE = "default"


@dataclass
class InCluster:
    """A LoRARLJob on an API server, and the mounted manifest of its pods. The gate is between trainer and server."""

    cluster: Cluster
    gate: TcpGate
    job: Job
    run_dir: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.stored.get("status", {}))

    @property
    def stored(self) -> dict[str, Any]:
        stored = self.cluster.api.get("LoRARLJob", NAME, NAMESPACE)
        assert stored is not None
        return stored

    def start(self, attempt: int, *overrides: str, **environment: str) -> Running:
        self.job.environment |= environment | {
            "KUBECONFIG": self.environment["KUBECONFIG"],
            "LORARL_ATTEMPT": str(attempt),
            "LORARL_RUN_DIR": str(self.run_dir),
        }
        return self.job.start(*overrides, more=["--in-cluster"])

    def change_steps(self, steps: int) -> None:
        """What the operator and kubelet do when the user changes spec.trainer.steps."""
        self.change(trainer={"steps": steps})

    def change(self, **fields: Any) -> None:
        """The same for other fields of the spec; those of a mapping are added to it."""
        path = self.job.folder / "job.yaml"
        manifest = yaml.safe_load(path.read_text())
        spec = manifest["spec"]
        spec |= {key: spec[key] | value if isinstance(value, dict) else value for key, value in fields.items()}
        path.with_suffix(".new").write_text(yaml.safe_dump(manifest))
        path.with_suffix(".new").rename(path)


@contextmanager
def in_cluster(job: Job, folder: Path) -> Iterator[InCluster]:
    """Start an API server in `folder` and give it the job, with the rights that the operator gives to the trainer.

    Raises:
        ToolMissingError: a server is not there.
    """
    servers, pod = folder / "control-plane", folder / "pod"
    servers.mkdir()
    pod.mkdir()
    with control_plane(servers, audit=True) as cluster, TcpGate(cluster.port) as gate:
        install_crds(cluster, CRD)
        yield _job_in(cluster, gate, job, pod)


def _job_in(cluster: Cluster, gate: TcpGate, job: Job, run_dir: Path) -> InCluster:
    manifest = yaml.safe_load((job.folder / "job.yaml").read_text())
    if "reward" in manifest["spec"]:
        manifest["spec"]["reward"]["source"] = {"uri": "file:letters.py"}
    # Its checkpoints are in a folder, which a cluster takes from volumes only. Here the pods are this machine.
    volumes = {"podTemplateOverrides": {"head": {"spec": {}}, "worker": {"spec": {}}}}
    stored_spec = {**manifest["spec"], "cluster": {**manifest["spec"].get("cluster", {}), **volumes}}
    cluster.must("apply", "-f", "-", stdin=json.dumps({**manifest, "spec": stored_spec}))
    stored = json.loads(cluster.must("get", "lrj", NAME, "-o", "json"))
    # What the operator mounts into the pods, and the rights it gives them.
    manifest["metadata"] = {key: stored["metadata"][key] for key in ("name", "namespace", "uid")}
    (job.folder / "job.yaml").write_text(yaml.safe_dump(manifest))
    parsed = parse.job(stored)

    for made in (*needs(parsed, ClusterSpec(), Settings("any")), *grants(parsed, ClusterSpec())):
        cluster.must("apply", "--server-side", "-f", "-", stdin=json.dumps(made))
    token = cluster.service_account_token(NAMESPACE, f"lorarl-{NAME}")
    kubeconfig = gate.kubeconfig(cluster, token)
    return InCluster(cluster, gate, job, run_dir, {"KUBECONFIG": str(kubeconfig)})
