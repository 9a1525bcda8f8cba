"""An attempt that holds some machines and waits for others gives them back after a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Delete
from lorarl_operator.decide.models import Evidence
from unit.operator.decisions import QUEUE, conditions, status_of
from unit.operator.observed_world import SETTINGS, START, condition, observed, raw_job, raw_pod, raw_ray_job

FULL = condition("PodScheduled", False, "Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")
OWN_LIMIT = SETTINGS.partly_placed_seconds * 1.5


def placed(name, age, role="worker"):
    scheduled = condition("PodScheduled", True, age=age)
    return raw_pod(role, name=name, age=90_000, phase="Pending", conditions=[scheduled])


def waiting(name, why=FULL):
    return raw_pod("worker", name=name, age=90_000, phase="Pending", nodeName="", conditions=[why])


HEAD = placed("head", 80_000, "head")


def after(*pods, queued=False, settings=SETTINGS, seconds=0.0, status=None, spec=None):
    ray_job = raw_ray_job(age=90_000, jobDeploymentStatus="Initializing")
    ray_job["metadata"]["labels"] |= QUEUE if queued else {}
    job = raw_job({"cluster": {"nodes": 2, "gpusPerNode": 8}} | (spec or {}), status or status_of("Pending"))
    seen = observed(job, ray_job, pods=[HEAD, *pods], evidence=Evidence())
    return decide(seen, START + timedelta(seconds=seconds), settings)


def test_the_machines_go_back_and_nothing_is_counted():
    decision = after(placed("a", OWN_LIMIT), waiting("b"))
    assert decision.actions == (Delete("RayJob", "demo-1", "ray-1"),)
    status, running = decision.status, conditions(decision)["Running"]
    assert (status["phase"], status["rayJobName"]) == ("Restarting", "demo-2")
    assert not {"attempts", "preemptions", "restarts"} & status.keys() or status["restarts"] == 0
    assert running["reason"] == "PartlyPlaced"
    assert running["message"].startswith(
        "Attempt 1 had 1 of 2 pods placed (on node-1) and gave the machines back. No node fits worker pod b: 0/3"
    )
    assert "Attempt 2 follows in 60 s. A queue of Kueue" in running["message"]
    assert decision.recheck_seconds == 60


def test_the_next_attempt_leaves_the_others_time_to_take_them():
    status = after(placed("a", OWN_LIMIT), waiting("b")).status
    seen = observed(raw_job({"cluster": {"nodes": 2, "gpusPerNode": 8}}, status))
    early = decide(seen, START + timedelta(seconds=59), SETTINGS)
    assert (early.actions, early.recheck_seconds) == ((), 1)
    late = decide(seen, START + timedelta(seconds=60), SETTINGS)
    assert "demo-2" in str(late.actions)


@pytest.mark.parametrize(
    ("pods", "more"),
    [
        ([placed("a", 100), waiting("b")], {}),
        ([placed("a", OWN_LIMIT), placed("b", 100), waiting("c")], {}),  # it has just got one more
        ([waiting("a"), waiting("b")], {}),  # the head alone keeps no job from running
        ([placed("a", OWN_LIMIT), placed("b", OWN_LIMIT)], {}),
        ([placed("a", OWN_LIMIT), waiting("b", condition("PodScheduled", False, "SchedulingGated"))], {}),
        ([placed("a", OWN_LIMIT), waiting("b")], {"queued": True}),
        ([placed("a", OWN_LIMIT), waiting("b")], {"settings": replace(SETTINGS, partly_placed_seconds=0)}),
    ],
)
def test_otherwise_the_attempt_waits(pods, more):
    assert after(*pods, **more).actions == ()


def test_an_autoscaler_that_adds_nodes_is_waited_for():
    scaling = status_of("Pending", conditions=[condition("Running", False, "ScalingUp", "m", age=30)])
    ray_job = raw_ray_job(age=90_000, jobDeploymentStatus="Initializing")
    pods = [HEAD, placed("a", OWN_LIMIT), waiting("b")]
    job = raw_job({"cluster": {"nodes": 2, "gpusPerNode": 8}}, scaling)
    assert decide(observed(job, ray_job, pods=pods), START, SETTINGS).actions == ()


def test_jobs_that_block_each_other_do_not_give_up_together():
    def seconds(uid):
        ray_job = raw_ray_job(age=10, jobDeploymentStatus="Initializing", owner=uid)
        pods = [placed("a", 0), waiting("b")]
        for pod in pods:
            pod["metadata"]["labels"]["lorarl.io/job-uid"] = uid
        job = raw_job({"cluster": {"nodes": 2, "gpusPerNode": 8}}, status_of("Pending"), uid=uid)
        return next(
            age for age in range(900, 1351) if decide(observed(job, ray_job, pods=pods), after_(age), SETTINGS).actions
        )

    def after_(age):
        return START + timedelta(seconds=age)

    found = {seconds(uid) for uid in ("one", "other", "third")}
    assert len(found) == 3 and min(found) >= 900
