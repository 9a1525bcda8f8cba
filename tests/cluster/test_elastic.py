"""An elastic job in real pods: it loses a worker that cannot come back, continues without it, and takes it in again.

`make cluster` and then this file alone: `pytest -m long tests/cluster/test_elastic.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.installation import Images, apply, make_room, upgrade_lorarl
from support.cluster.kubectl import RealCluster
from support.cluster.lorarljobs import events
from support.real_cluster import example
from support.real_cluster.example import ADDITION
from support.real_cluster.store import Bucket, bucket_of
from support.real_cluster.watched import SETTLED_STEPS, Seen, Watched, watched

pytestmark = pytest.mark.long

TEAM, JOB = "elastic", "addition-elastic"
LONGEST_SECONDS = 900
MORE_THAN_IT_WILL_MAKE = 2000
LAST_STEPS = 15
WAIT_SECONDS, GROW_SECONDS = 20, 1
CHANGES: dict[str, Any] = {
    "cluster.nodes": 2,
    "cluster.minNodes": 1,
    "checkpoint.every": 2,
    "trainer.steps": MORE_THAN_IT_WILL_MAKE,
    "data.eval.every": MORE_THAN_IT_WILL_MAKE,
}


@pytest.fixture
def bucket(installed: RealCluster, images: Images, out: Path) -> Iterator[Bucket]:
    """The store, beside an operator whose jobs wait for lost nodes some seconds only."""
    times = {"LORARL_ELASTIC_WAIT_SECONDS": WAIT_SECONDS, "LORARL_ELASTIC_GROW_SECONDS": GROW_SECONDS}
    extra = [{"name": name, "value": str(seconds)} for name, seconds in times.items()]
    upgrade_lorarl(installed, images.operator, images.trainer, values={"extraEnv": extra})
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
        bucket.clear(f"adapters/{JOB}/")  # of an earlier run on this node: the job would resume from them
        make_room(installed, TEAM)
        yield bucket
    installed.must("delete", "lorarljobs", "--all", "-n", TEAM, "--wait")
    upgrade_lorarl(installed, images.operator, images.trainer)


def pods(cluster: RealCluster, phase: str) -> list[dict[str, Any]]:
    """The job's worker pods of a phase that are not being deleted."""
    found = cluster.api.list("Pod", TEAM, f"lorarl.io/job={JOB},lorarl.io/role=worker")
    return [one for one in found if one["status"]["phase"] == phase and "deletionTimestamp" not in one["metadata"]]


def trains_on(job: Watched, count: int, since: Seen) -> float:
    """Wait until it trains on so many nodes and is a few steps further; the seconds until its first step there."""

    def on(seen: Seen) -> bool:
        workers = seen.status.get("workers", {}).get("pods", [])
        return seen.status.get("nodes") == count and len(workers) == count

    began = job.until(LONGEST_SECONDS, f"it trains on {count} nodes", on)
    further = job.until(LONGEST_SECONDS, "it makes steps", lambda seen: seen.step > max(since.step, began.step))
    job.until(LONGEST_SECONDS, "it makes more", lambda seen: seen.step >= further.step + SETTLED_STEPS)
    return round(further.at - since.at, 1)


def test_a_job_shrinks_without_a_node_and_grows_with_it(
    installed: RealCluster, bucket: Bucket, out: Path, tmp_path: Path
) -> None:
    cluster, seconds = installed, {}
    (node,) = (one["metadata"]["name"] for one in cluster.api.list("Node"))
    apply(cluster, ADDITION.manifest(JOB, CHANGES), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as job:
        seconds["first step on 2"] = trains_on(job, 2, job.now)
        lost = pods(cluster, "Running")[0]["metadata"]["name"]
        cluster.must("cordon", node)  # no pod gets a place until it is uncordoned
        try:
            struck = job.now
            cluster.must("delete", "pod", lost, "-n", TEAM, "--wait=false")
            seconds["first step on 1"] = trains_on(job, 1, struck)
            assert job.now.resumed_from is not None and job.now.resumed_from >= struck.status["adapter"]["step"]
            assert (len(pods(cluster, "Running")), len(pods(cluster, "Pending"))) == (1, 1)
            assert "It has 1 of 2 nodes." in cluster.must("describe", "lorarljob", JOB, "-n", TEAM)
        finally:
            cluster.must("uncordon", node)
        shrank = job.now
        seconds["first step on 2 again"] = trains_on(job, 2, shrank)
        assert job.now.resumed_from is not None and job.now.resumed_from > shrank.step
        steps = [seen.step for seen in job.history if seen.at >= shrank.at]
        assert steps == sorted(steps), "it grows at a checkpoint, and makes no step again"
        status, before = job.now.status, struck.counters
        assert job.now.counters == (before[0], before[1] + 1), json.dumps(status)
        assert status["rayJobName"] == struck.status["rayJobName"]
        told = {one["reason"] for one in events(cluster.api, TEAM, JOB)}
        assert told >= {"Shrank", "Grew"}, told

        cluster.api.patch("LoRARLJob", JOB, {"spec": {"suspend": True}}, TEAM)
        job.until(LONGEST_SECONDS, "it is suspended", lambda seen: seen.status.get("phase") == "Suspended")
        last = {"suspend": False, "trainer": {"steps": job.now.step + LAST_STEPS}}
        cluster.api.patch("LoRARLJob", JOB, {"spec": last}, TEAM)
        status = job.until(
            LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
        ).status
    figures = ADDITION.accuracy(bucket, status["adapter"], tmp_path)
    print(seconds, figures)
    example.note(out, elastic={"seconds": seconds, **figures})
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ADDITION.least_gain, figures
