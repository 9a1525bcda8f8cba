"""A job on GPUs takes faults, succeeds, and leaves nothing in the GPUs' memory. Its summary.json has the costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpu_cluster.ground import Ground
from node.installation import SYSTEM, apply, make_room, wait_available
from support.cluster.client import Object
from support.real_cluster.store import Bucket
from support.real_cluster.trial import START_SECONDS, Trial
from support.real_cluster.watched import watched

TEAM = "gpu-faults"
MORE_THAN_IT_WILL_MAKE = 100_000
LAST_STEPS = 10
ON_ONE_NODE: Object = {
    "cluster.podTemplateOverrides.worker.spec.affinity": {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}
    }
}
"""Workers with GPUs get a node each, and here there is one."""


@pytest.fixture(scope="module", params=["all-in-one-pod", "a-pod-for-each"])
def trial(ground: Ground, bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[Trial]:
    """The example's job with all GPUs, as it trains; every step is published."""
    cluster, job_name, apart = ground.cluster, request.param, request.param == "a-pod-for-each"
    if apart and ground.gpus == 1:
        pytest.skip("the node has one GPU, which no two pods can have")
    make_room(cluster, TEAM, level="privileged")
    changes = {
        "trainer.steps": MORE_THAN_IT_WILL_MAKE,
        "data.eval.every": MORE_THAN_IT_WILL_MAKE,
        "checkpoint.uri": f"s3://lorarl/faults-{time.time():.0f}",
        "checkpoint.every": 1,
        "checkpoint.keep": 3,
    }
    if apart:
        changes |= {"cluster.nodes": ground.gpus or 2, "cluster.gpusPerNode": min(ground.gpus, 1), **ON_ONE_NODE}
    out = ground.out / job_name
    out.mkdir(exist_ok=True)
    apply(cluster, ground.manifest(job_name, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, job_name) as job:
        try:
            yield Trial(cluster, job, out)
        finally:
            (out / "faults-describe.txt").write_text(cluster.must("describe", "lrj", job_name, "-n", TEAM))
    cluster.must("delete", "lrj", job_name, "-n", TEAM, "--wait")


def test_a_worker_pod_is_deleted_in_the_middle_of_a_step(trial: Trial) -> None:
    with trial.fault("worker deleted", preemptions=1, recovered=True):
        trial.delete_pod("worker")


def test_the_operator_is_killed(trial: Trial) -> None:
    with trial.fault("operator deleted"):
        trial.delete_operator()
    wait_available(trial.cluster, SYSTEM, "lorarl")


def test_suspended_and_resumed(trial: Trial, ground: Ground) -> None:
    """While it is suspended the GPUs are empty. It is also told to end soon."""
    with trial.fault("suspended and resumed", suspended=True):
        trial.set_spec({"suspend": True})
        trial.phase("Suspended")
        ground.gpus_are_free()
        trial.set_spec({"suspend": False, "trainer": {"steps": trial.job.now.step + LAST_STEPS}})


def test_it_succeeds_and_leaves_nothing(trial: Trial, ground: Ground) -> None:
    status = trial.job.until(
        START_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
    ).status
    assert (status["attempts"], status["preemptions"], status["restarts"]) == (*trial.counters, sum(trial.counters))
    assert status["step"] == status["totalSteps"] == status["adapter"]["step"]
    ground.gpus_are_free()
