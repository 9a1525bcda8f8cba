"""An interruption that the training reports: the cluster shows it, or it counts as a failure."""

from __future__ import annotations

import pytest

from unit.operator.decisions import RUNNING, conditions, decided, running_status
from unit.operator.observed_world import ago, condition, ended, raw_job, raw_pod, raw_ray_job

FAILED = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30))


def leaving(role, seconds):
    """A pod whose deletion was requested this long ago."""
    return raw_pod(role, deletionTimestamp=ago(seconds - 120), deletionGracePeriodSeconds=120)


@pytest.mark.parametrize("reason", ["Interrupted", "NodeLost"])
def test_an_interrupted_attempt_counts_as_a_preemption(reason):
    failure = {"reason": reason, "message": "SIGTERM", "attempt": 1}
    job = raw_job({"backoffLimit": 0}, running_status(failure=failure))
    decision = decided(job, FAILED, pods=[leaving("worker", 40)])
    assert decision.status["phase"] == "Restarting"
    assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)
    assert conditions(decision)["Disrupted"]["reason"] == reason
    assert decision.recheck_seconds == 1


@pytest.mark.parametrize("reason", ["Interrupted", "NodeLost"])
@pytest.mark.parametrize("pods", [[], [raw_pod("worker"), raw_pod("head")], ["after the end"]])
def test_an_interruption_that_nothing_shows_counts_as_a_failure(reason, pods):
    """The job's own code can report anything, also that it got further."""
    pods = [leaving("worker", 30)] if "after the end" in pods else pods
    failure = {"reason": reason, "message": "SIGTERM", "attempt": 1}
    job = raw_job({"backoffLimit": 0}, running_status(failure=failure, step=100))
    decision = decided(job, FAILED, pods=pods)
    assert (decision.status["phase"], decision.status["attempts"]) == ("Failed", 1)
    assert "nothing in the cluster shows that. SIGTERM" in conditions(decision)["Failed"]["message"]
    exited = raw_pod("head", containerStatuses=ended("head", 1, age=10))
    decision = decided(job, raw_ray_job(**RUNNING), pods=[exited])
    assert (decision.status["phase"], decision.status["attempts"]) == ("Failed", 1)


@pytest.mark.parametrize(
    "pod",
    [
        raw_pod("worker", conditions=[condition("DisruptionTarget", True, "EvictionByEvictionAPI")]),
        raw_pod("worker", age=20),
        raw_pod("head", conditions=[condition("Ready", False), condition("ContainersReady", True)]),
    ],
    ids=["evicted", "replaced", "node does not respond"],
)
def test_what_shows_an_interruption(pod):
    failure = {"reason": "Interrupted", "message": "SIGTERM", "attempt": 1}
    decision = decided(raw_job({"backoffLimit": 0}, running_status(failure=failure)), FAILED, pods=[pod])
    assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)
