"""For how long a job has held its GPUs comes from its pods, whatever its training reports."""

from __future__ import annotations

from datetime import timedelta

from unit.operator.decisions import PREEMPTED, QUEUE, RUNNING, decided, running_status, status_of
from unit.operator.observed_world import START, ago, condition, raw_job, raw_pod, raw_ray_job

SPEC = {"cluster": {"nodes": 2, "gpusPerNode": 4}}
FORGED = {"gpuSeconds": {"useful": 0, "lost": 0, "startup": 0, "unsaved": 0}}


def placed(age, role="worker", **parts):
    return raw_pod(role, name=f"{role}-{age}", age=age, conditions=[condition("PodScheduled", True, age=age)], **parts)


def held(decision):
    return decision.status.get("heldGpuSeconds"), decision.status.get("gpusHeldSince")


def test_they_are_held_from_the_placement_of_the_first_worker():
    pods = [placed(300, "head"), placed(90), placed(40)]
    job = raw_job(SPEC, status_of("Starting", **FORGED))
    assert held(decided(job, raw_ray_job(**RUNNING), pods=pods)) == (None, ago(90))


def test_an_end_adds_the_time_of_the_attempt():
    job = raw_job(SPEC, running_status(gpusHeldSince=ago(90), heldGpuSeconds=1000, **FORGED))
    succeeded = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED", endTime=ago(1))
    assert held(decided(job, succeeded)) == (1000 + 8 * 90, None)


def test_each_way_to_lose_the_machines_ends_the_time_once():
    job = raw_job(SPEC, running_status(gpusHeldSince=ago(50)))
    evicted = raw_pod("head", phase="Failed", reason="Evicted", message="node-1")
    taken_back = raw_ray_job(suspend=True, **RUNNING)
    taken_back["metadata"]["labels"] |= QUEUE
    suspended = raw_job(SPEC | {"suspend": True}, running_status(gpusHeldSince=ago(50)))
    ends = {
        "Restarting": decided(job, raw_ray_job(**RUNNING), pods=[evicted]),
        "Pending": decided(job, taken_back, evidence=PREEMPTED),
        "Suspending": decided(suspended, raw_ray_job(**RUNNING)),
    }
    for phase, decision in ends.items():
        assert decision.status["phase"] == phase
        assert held(decision) == (400, None)
        again = decided(raw_job(SPEC, decision.status), now=START + timedelta(seconds=500))
        assert (again.status or decision.status)["heldGpuSeconds"] == 400


def test_an_attempt_that_never_ran_counts_from_its_pods():
    failure = {"failure": {"reason": "InvalidInput", "message": "x", "attempt": 1}}
    ray_job = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30))
    decision = decided(raw_job(SPEC, status_of("Starting", **failure)), ray_job, pods=[placed(60), placed(20)])
    assert held(decision) == (8 * 60, None)


def test_a_job_without_gpus_holds_none():
    pods = [placed(90)]
    assert held(decided(raw_job(status=status_of("Starting")), raw_ray_job(**RUNNING), pods=pods)) == (None, None)


def test_a_month_of_a_thousand_gpus_is_no_absurd_number():
    job = raw_job(SPEC, running_status(gpusHeldSince=ago(10), heldGpuSeconds=2**33))
    succeeded = raw_ray_job(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED", endTime=ago(1))
    assert held(decided(job, succeeded)) == (2**33 + 80, None)
