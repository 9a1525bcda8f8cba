"""Jobs that a sweep and a schedule make, in real pods: the best trial is named, and the second night continues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.installation import apply, make_room
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.lorarljobs import phase
from support.cluster.schedules import create_due, days_ago, job_of
from support.real_cluster.example import ADDITION
from support.real_cluster.store import Bucket, bucket_of

pytestmark = pytest.mark.long

TEAM = "makers"
LONGEST_SECONDS = 1000
SHORT = {"trainer.steps": 2, "checkpoint.resume": "Never", "data.eval.every": 1, "checkpoint.keepBest": {}}


@pytest.fixture(scope="module")
def bucket(installed: RealCluster, out: Path) -> Iterator[Bucket]:
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
        make_room(installed, TEAM)
        yield bucket


def maker(kind: str, name: str, **spec: object) -> Object:
    """A sweep or a schedule of jobs of two steps."""
    template = {"spec": ADDITION.manifest("any", SHORT)["spec"]}
    about = {"name": name, "namespace": TEAM}
    return {"apiVersion": "lorarl.io/v1alpha1", "kind": kind, "metadata": about, "spec": {"template": template, **spec}}


def test_a_sweep_names_the_best_of_two_trainings(installed: RealCluster, bucket: Bucket, tmp_path: Path) -> None:
    over = [{"path": "spec.trainer.seed", "values": [0, 1]}]
    apply(installed, maker("LoRARLSweep", "seeds", over=over, objective={"metric": "best"}), namespace=TEAM)
    found = installed.api.wait(
        "LoRARLSweep", "seeds", TEAM, lambda one: phase(one) in ("Succeeded", "Failed"), seconds=LONGEST_SECONDS
    )
    values = {one["name"]: one["value"] for one in found["status"]["trials"]}
    assert found["status"]["succeeded"] == 2 and found["status"]["best"]["value"] == max(values.values())
    assert (
        (bucket.download(found["status"]["best"]["uri"], tmp_path / "best") / "adapter_model.safetensors")
        .stat()
        .st_size
    )
    installed.must("delete", "lorarlsweep", "seeds", "-n", TEAM, "--wait")


def test_the_second_night_starts_from_the_adapter_of_the_first(installed: RealCluster, bucket: Bucket) -> None:
    create_due(installed.api, maker("LoRARLSchedule", "nightly", schedule=days_ago(9), continueFrom="last"))
    for days in (9, 8):
        patch = {"spec": {"schedule": days_ago(days)}}
        installed.api.patch("LoRARLSchedule", "nightly", patch, TEAM)
        job = installed.api.wait(
            "LoRARLJob", job_of(days), TEAM, lambda one: phase(one) in ("Succeeded", "Failed"), seconds=LONGEST_SECONDS
        )
        assert phase(job) == "Succeeded"
        first = installed.api.get("LoRARLJob", job_of(9), TEAM) or {}
        expected = first["status"]["adapter"]["uri"] if days == 8 else None
        assert job["spec"]["adapter"].get("initFrom") == expected
    installed.must("delete", "lorarlschedule", "nightly", "-n", TEAM, "--wait")
