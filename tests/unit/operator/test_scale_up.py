"""A pod for which the cluster autoscaler adds a node says so."""

from __future__ import annotations

from lorarl_operator.decide.models import Evidence, KubeEvent
from lorarl_operator.decide.parse import time
from unit.operator.decisions import conditions, decided, status_of
from unit.operator.observed_world import START, ago, condition, raw_job, raw_pod, raw_ray_job

SAID = "pod triggered scale-up: [{gpu-pool 0->1 (max: 8)}]"
RAY_JOB = raw_ray_job(age=120, jobDeploymentStatus="Initializing")
PODS = [
    raw_pod(nodeName="", phase="Pending", conditions=[condition("PodScheduled", False, "Unschedulable", "0/3 nodes")])
]


def seen(age, pod="demo-1-worker", reason="TriggeredScaleUp"):
    return Evidence((KubeEvent("Pod", pod, reason, SAID, time(ago(age))),))


def reported(status=None, **found):
    return decided(raw_job(status=status or status_of("Starting")), RAY_JOB, pods=PODS, **found)


def test_a_node_that_is_being_added_is_no_reason_to_add_one():
    decision = reported(evidence=seen(30))
    running = conditions(decision)["Running"]
    assert (decision.status["phase"], running["reason"]) == ("Pending", "ScalingUp")
    assert running["message"] == f"The cluster autoscaler adds a node for worker pod demo-1-worker: {SAID}."
    again = reported(decision.status)
    assert again.status is None, "it holds until the Events are read again"
    gone = reported(decision.status, evidence=Evidence())
    assert conditions(gone)["Running"]["reason"] == "Unschedulable"


def test_karpenter_adds_a_node_too():
    running = conditions(reported(evidence=seen(30, reason="Nominated")))["Running"]
    assert running["reason"] == "ScalingUp"
    assert running["message"].startswith("Karpenter adds a node for worker pod demo-1-worker")


def test_an_old_event_or_one_about_another_pod_says_nothing():
    for evidence in (seen(16 * 60), seen(5, "another"), Evidence(), None):
        assert conditions(reported(evidence=evidence))["Running"]["reason"] == "Unschedulable"


def test_the_start_deadline_counts_meanwhile():
    job = raw_job({"startDeadlineSeconds": 60}, status_of("Starting"))
    decision = decided(job, RAY_JOB, pods=PODS, evidence=seen(30), now=START)
    assert conditions(decision)["Failed"]["reason"] == "StartDeadlineExceeded"
    assert SAID in conditions(decision)["Failed"]["message"]
