"""The operator of the version before, with today's definitions: as during an upgrade, and after a rollback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import pods
from support.cluster.client import Object
from support.cluster.crds import CRDS
from support.cluster.kueue import QUEUE_LABEL, add_queue, workload_of
from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.operator import operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.tools import tools_or_skip
from support.previous_version import previous_version, python_path

pytestmark = pytest.mark.long

SECONDS = 60.0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with previous_version(tmp_path_factory.mktemp("previous") / "tree") as found:
        yield found


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("platform"), crds=CRDS) as running:
        kubeconfig = prepare(running.cluster, rights=tree / "helm/lorarl/files/rights.yaml")
        with operator(running.cluster, kubeconfig, "previous", tree=tree) as one:
            wait_leader(one)
            yield running


def wait(p: Platform, namespace: str, wanted: str) -> Object:
    return p.api.wait("LoRARLJob", "job", namespace, lambda job: phase(job) == wanted, seconds=SECONDS)


def test_it_runs_a_job_of_today_through_a_loss_to_its_end(p: Platform, tree: Path, tmp_path: Path) -> None:
    namespace = p.namespace("previous")
    p.api.create(lorarljob(namespace, "job"))
    wait(p, namespace, "Running")
    report(p.api, namespace, "job", step=3, totalSteps=10)
    pods.evict(p.api, p.pods(namespace, "job-1", pods.WORKER)[0])

    def lost(job: Object) -> bool:
        return int(job["status"].get("preemptions", 0)) == 1

    job = p.api.wait("LoRARLJob", "job", namespace, lost, seconds=SECONDS)
    assert condition(job, "Disrupted")["reason"] == "EvictionByEvictionAPI"
    again = p.api.wait("LoRARLJob", "job", namespace, lambda one: phase(one) == "Running", seconds=SECONDS)
    p.wait_running(namespace, again["status"]["rayJobName"], seconds=SECONDS)
    config = p.api.get("ConfigMap", "lorarl-job", namespace) or {}
    manifest = tmp_path / "job.yaml"
    manifest.write_text(config["data"]["job.yaml"])
    checked = subprocess.run(
        [sys.executable, "-m", "lorarl_trainer.cli", "validate", str(manifest)],
        env={**os.environ, "PYTHONPATH": python_path(tree)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    p.finish(namespace, again["status"]["rayJobName"], "SUCCEEDED")
    wait(p, namespace, "Succeeded")


@pytest.fixture(scope="module")
def queued(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("queued"), crds=CRDS, kueue=True) as running:
        yield running


@pytest.mark.parametrize("counted", [True, False], ids=["after-the-loss-is-counted", "before"])
def test_it_takes_over_while_a_job_starts_again_in_its_rayjob(queued: Platform, tree: Path, counted: bool) -> None:
    """It does not know that jobs do so. Today's operator is back a moment later, and the job keeps its quota."""
    p, namespace = queued, queued.namespace("in-place")
    kubeconfig = prepare(p.cluster)
    add_queue(p.cluster, namespace, namespace, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"})
    with operator(p.cluster, kubeconfig, f"today-{counted}") as today:
        wait_leader(today)
        for job in ("job", "waits"):
            size = {"gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"}
            p.api.create(lorarljob(namespace, job, labels={QUEUE_LABEL: namespace}, cluster=size))
            wait(p, namespace, "Running")
        report(p.api, namespace, "job", step=3, totalSteps=10)
        before = workload_of(p.api, namespace, "job-1")
        if counted:
            lose_head(p, namespace)
            p.api.wait("LoRARLJob", "job", namespace, lambda one: one["status"].get("restartsInPlace") == 1)
    with operator(p.cluster, kubeconfig, f"previous-{counted}", tree=tree) as previous:
        wait_leader(previous)
        if not counted:
            lose_head(p, namespace)
        p.api.wait("RayJob", "job-1", namespace, lambda one: one["status"].get("failed") == 1, seconds=SECONDS)
        p.wait_running(namespace, "job-1", seconds=SECONDS)
        wait(p, namespace, "Running")
        assert workload_of(p.api, namespace, "job-1") == before
    with operator(p.cluster, kubeconfig, f"again-{counted}") as again:
        wait_leader(again)
        wait(p, namespace, "Running")
        lose_head(p, namespace)
        job = p.api.wait("LoRARLJob", "job", namespace, lambda one: one["status"].get("restartsInPlace") == 2)
        assert (job["status"]["preemptions"], job["status"]["attempts"]) == (2, 0)
        wait(p, namespace, "Running")
        assert workload_of(p.api, namespace, "job-1") == before, "one Workload, admitted once"
        p.finish(namespace, "job-1", "SUCCEEDED")
        wait(p, namespace, "Succeeded")
        p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def lose_head(p: Platform, namespace: str) -> None:
    p.api.delete("Pod", p.pods(namespace, "job-1", pods.HEAD)[0]["metadata"]["name"], namespace)
