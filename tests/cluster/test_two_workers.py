"""Two worker pods train one adapter, data parallel: two nodes of Ray, as two GPU nodes would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.installation import apply, make_room
from support.cluster.kubectl import RealCluster
from support.real_cluster import example
from support.real_cluster.example import ADDITION
from support.real_cluster.store import bucket_of
from support.real_cluster.watched import watched

pytestmark = pytest.mark.long

TEAM = "two"
JOB = "addition-two"
LONGEST_SECONDS = 500


def test_two_worker_pods_train_a_good_adapter(installed: RealCluster, out: Path, tmp_path: Path) -> None:
    cluster = installed
    with bucket_of(cluster, out) as bucket:
        ADDITION.upload(bucket)
        make_room(cluster, TEAM)
        changes = {"cluster.nodes": 2, "checkpoint.resume": "Never", "checkpoint.every": 10, "data.eval.every": 30}
        apply(cluster, ADDITION.manifest(JOB, changes), namespace=TEAM)
        with watched(cluster.api, TEAM, JOB) as job:
            running = job.until(LONGEST_SECONDS, "a step", lambda seen: seen.step > 0)
            workers = cluster.api.list("Pod", TEAM, f"lorarl.io/job={JOB},lorarl.io/role=worker")
            assert len({pod["status"]["podIP"] for pod in workers}) == 2
            status = job.until(
                LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
            ).status
            seconds = {
                "first step": round(running.at - job.history[0].at, 1),
                "Succeeded": round(job.now.at - job.history[0].at, 1),
            }
        assert (status["attempts"], status["preemptions"]) == (0, 0)
        figures = ADDITION.accuracy(bucket, status["adapter"], tmp_path)
    print(seconds, figures)
    example.note(out, two_workers={"seconds": seconds, **figures})
    cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ADDITION.least_gain, figures
