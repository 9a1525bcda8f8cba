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
