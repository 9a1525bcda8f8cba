"""A trainer's pod and two pods with engines: one of these is deleted, then both are drained. No step is made again.

`make cluster` and then this file alone: `pytest -m long tests/cluster/test_separate_engines.py`. It takes some minutes
on two cores, since three processes of torch and vLLM share them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.installation import apply, make_room
from support.cluster.kubectl import RealCluster
from support.real_cluster import example
from support.real_cluster.example import ADDITION
from support.real_cluster.store import bucket_of
from support.real_cluster.watched import SETTLED_STEPS, Seen, Watched, watched

pytestmark = pytest.mark.long

TEAM = "engines"
JOB = "addition-engines"
LONGEST_SECONDS = 900
CHANGES = {
    "rollout.separateEngines": {"count": 2},
    "rollout.maxStaleness": 1,
    "rollout.serverTimeoutSeconds": 600.0,
    "algorithm.correction": {"preset": "decoupled_token_is"},
    "cluster.terminationGracePeriodSeconds": 20,
    "checkpoint.resume": "Never",
    "checkpoint.every": 10,
    "data.eval.every": 30,
}


def of_role(cluster: RealCluster, role: str) -> list[dict[str, Any]]:
    """The job's pods of a role that are not being deleted, by name."""
    found = cluster.api.list("Pod", TEAM, f"lorarl.io/job={JOB},lorarl.io/role={role}")
    alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return sorted(alive, key=lambda pod: str(pod["metadata"]["name"]))


def names(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def driver_says(cluster: RealCluster, text: str) -> bool:
    """Whether the run has said this. Its output is in the head's pod, in KubeRay's submitter."""
    [head] = of_role(cluster, "head")
    return text in cluster.must("logs", head["metadata"]["name"], "-n", TEAM, "-c", "ray-job-submitter")


def delete_one(cluster: RealCluster) -> None:
    first = of_role(cluster, "engine")[0]["metadata"]["name"]
    cluster.must("delete", "pod", first, "-n", TEAM, "--wait=false")


def drain_all(cluster: RealCluster) -> None:
    """Drain the node of engines alone, so that the training waits, and give it back."""
    node = of_role(cluster, "engine")[0]["spec"]["nodeName"]
    engines = f"--pod-selector=lorarl.io/job={JOB},lorarl.io/role=engine"
    try:
        cluster.must("drain", node, engines, "--delete-emptydir-data", "--force", "--timeout=60s")
    finally:
        cluster.must("uncordon", node)


def seconds_lost(cluster: RealCluster, job: Watched, lose: Callable[[RealCluster], None]) -> float:
    """Lose pods of engines in mid-step; return the seconds until others are there and the job is further."""
    before, struck = names(of_role(cluster, "engine")), job.now
    lose(cluster)

    def is_replaced(_: Seen) -> bool:
        now = names(of_role(cluster, "engine"))
        # A pod that came a moment ago may have had no engine yet, whose loss could be said.
        said = any(driver_says(cluster, f"lost its pod {one}") for one in before - now)
        return len(now) == 2 and now != before and said

    job.until(LONGEST_SECONDS, f"{lose.__name__}: other pods are there", is_replaced)
    further = job.until(LONGEST_SECONDS, "it makes steps", lambda seen: seen.step >= struck.step + SETTLED_STEPS)
    return round(further.at - struck.at, 1)


def test_the_loss_of_engines_costs_no_step(installed: RealCluster, out: Path, tmp_path: Path) -> None:
    cluster = installed
    with bucket_of(cluster, out) as bucket:
        ADDITION.upload(bucket)
        make_room(cluster, TEAM)
        apply(cluster, ADDITION.manifest(JOB, CHANGES), namespace=TEAM)
        with watched(cluster.api, TEAM, JOB) as job:
            job.until(LONGEST_SECONDS, "two steps", lambda seen: seen.step >= 2)
            workers = names(of_role(cluster, "worker"))
            assert len(workers) == 1 and len(of_role(cluster, "engine")) == 2
            seconds = {lose.__name__: seconds_lost(cluster, job, lose) for lose in (delete_one, drain_all)}
            status = job.until(
                LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
            ).status
        steps = [seen.step for seen in job.history]
        assert steps == sorted(steps), "no step is made again"
        assert (status["attempts"], status["preemptions"], status["restarts"]) == (0, 0, 0), json.dumps(status)
        assert status["rayJobName"] == f"{JOB}-1" and "resumedFromStep" not in status
        assert set(status["workers"]["pods"]) == workers, "the trainer's pod stayed"
        figures = ADDITION.accuracy(bucket, status["adapter"], tmp_path)
    print(seconds, figures)
    example.note(out, separate_engines={"seconds": seconds, **figures})
    cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ADDITION.least_gain, figures
