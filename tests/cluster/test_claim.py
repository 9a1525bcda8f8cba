"""A job without an object store: model, data and checkpoints are on one PersistentVolumeClaim.

The volume belongs to root, as a new one does. Attempts resume from it, and a deleted job takes only its own files away.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.installation import apply, make_room
from node.node import Node
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.real_cluster.example import ADDITION
from support.real_cluster.trial import START_SECONDS, Trial
from support.real_cluster.watched import watched

pytestmark = pytest.mark.long

TEAM, JOB, CLAIM, VOLUME = "claims", "on-a-claim", "lustre", "lorarl-test-lustre"
MORE_THAN_IT_WILL_MAKE = 2000
LAST_STEPS = 15
GONE_SECONDS = 120.0
TRAINERS_USER = 10001
ON_THE_CLAIM = {
    "model": {"uri": f"pvc://{CLAIM}/addition/base"},
    "data.train.uri": f"pvc://{CLAIM}/addition/train.jsonl",
    "data.eval.uri": f"pvc://{CLAIM}/addition/held_out.jsonl",
    "data.eval.every": MORE_THAN_IT_WILL_MAKE,
    "data.credentialsSecret": None,
    "checkpoint": {"uri": f"pvc://{CLAIM}/adapters", "every": 1, "deletionPolicy": "Delete"},
    "trainer.steps": MORE_THAN_IT_WILL_MAKE,
    "cluster.terminationGracePeriodSeconds": 30,
}


@pytest.fixture(scope="module")
def volume(installed: RealCluster, own_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder behind the claim, which has model and data."""
    del own_node  # only its disk is this machine's
    folder = tmp_path_factory.mktemp("volume")
    shutil.copytree(ADDITION.make(), folder / "addition")
    make_room(installed, TEAM)
    (node,) = installed.api.list("Node")
    apply(installed, persistent_volume(folder, node["metadata"]["name"]), claim(), namespace=TEAM)
    yield folder
    installed.must("delete", "lorarljobs", "--all", "-n", TEAM, "--wait")
    installed.must("delete", "persistentvolumeclaim", CLAIM, "-n", TEAM, "--wait=false")
    installed.must("delete", "persistentvolume", VOLUME, "--wait=false")


@pytest.fixture(scope="module")
def trial(installed: RealCluster, volume: Path, out: Path) -> Iterator[Trial]:
    apply(installed, ADDITION.manifest(JOB, ON_THE_CLAIM), namespace=TEAM)
    with watched(installed.api, TEAM, JOB) as job:
        job.until(START_SECONDS, "a step", lambda seen: seen.step > 0)
        yield Trial(installed, job, out)


def persistent_volume(folder: Path, node: str) -> Object:
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": VOLUME},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "local": {"path": str(folder)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
        },
    }


def claim() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": VOLUME,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def test_the_next_attempt_resumes_from_the_claim(trial: Trial) -> None:
    with trial.fault("checkpoints on a claim: head deleted", preemptions=1):
        trial.delete_pod("head")
        before = trial.job.now.status["preemptions"]
        trial.job.until(START_SECONDS, "it is counted", lambda seen: seen.counters[1] > before)
        trial.set_spec({"trainer": {"steps": trial.job.now.step + LAST_STEPS}})
    assert (trial.job.now.resumed_from or 0) > 0


def test_it_succeeds_and_its_files_are_the_trainer_s(trial: Trial, volume: Path) -> None:
    status = trial.job.until(
        START_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
    ).status
    adapter = status["adapter"]
    assert adapter["uri"].startswith(f"pvc://{CLAIM}/adapters/{JOB}/iter_")
    weights = volume / adapter["uri"].removeprefix(f"pvc://{CLAIM}/") / "adapter_model.safetensors"
    assert weights.stat().st_uid == TRAINERS_USER
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == adapter["sha256"]
    assert status["record"].startswith(f"pvc://{CLAIM}/adapters/{JOB}/runs/")
    assert len(list((volume / "adapters" / JOB / "runs").iterdir())) == 2, "both attempts have their record"


def test_a_deleted_job_takes_only_its_own_files_away(trial: Trial, volume: Path) -> None:
    theirs = volume / "adapters" / "another-team.txt"
    theirs.write_text("not lorarl's")
    trial.cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait", f"--timeout={GONE_SECONDS:g}s")
    until(GONE_SECONDS, "its folder is gone", lambda: not list((volume / "adapters" / JOB).glob("iter_*")))
    assert theirs.exists()
    assert (volume / "addition" / "train.jsonl").exists()
