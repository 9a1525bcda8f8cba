"""One job on GPUs takes faults, succeeds, and leaves nothing in the GPUs' memory. summary.json has the costs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpu_cluster.ground import Ground
from node.installation import SYSTEM, apply, make_room, wait_available
from support.real_cluster.store import Bucket
from support.real_cluster.trial import START_SECONDS, Trial
from support.real_cluster.watched import watched

TEAM = "gpu-faults"
JOB = "struck"
MORE_THAN_IT_WILL_MAKE = 100_000
LAST_STEPS = 10


@pytest.fixture(scope="module")
def trial(ground: Ground, bucket: Bucket) -> Iterator[Trial]:
    """The example's job with all GPUs, as it trains; every step is published."""
    cluster = ground.cluster
    make_room(cluster, TEAM, level="privileged")
    changes = {
        "trainer.steps": MORE_THAN_IT_WILL_MAKE,
        "data.eval.every": MORE_THAN_IT_WILL_MAKE,
        "checkpoint.uri": f"s3://lorarl/faults-{time.time():.0f}",
        "checkpoint.every": 1,
        "checkpoint.keep": 3,
    }
    apply(cluster, ground.manifest(JOB, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as job:
        try:
            yield Trial(cluster, job, ground.out)
        finally:
            (ground.out / "faults-describe.txt").write_text(cluster.must("describe", "lrj", JOB, "-n", TEAM))
    cluster.must("delete", "lrj", JOB, "-n", TEAM, "--wait")


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
