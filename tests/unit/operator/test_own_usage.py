"""Evictions: those that the job caused itself are failures that say what to raise; the others are preemptions."""

from __future__ import annotations

import pytest

from lorarl_api.quantities import quantity
from unit.operator.decisions import RUNNING, conditions, decided, running_status, status_of
from unit.operator.observed_world import ago, condition, raw_job, raw_pod, raw_ray_job

LOW = "The node was low on resource: {}. Threshold quantity: 100Mi, available: 53004Ki. "
USED = "Container {} was using {}, request is {}, has larger consumption of {}. "
DISK = "ephemeral-storage"
OWN = {
    "a volume's limit": ('Usage of EmptyDir volume "cache" exceeds the limit "200Gi". ', "DiskFull", "diskPerNode"),
    "the pod's limit": (
        "Pod ephemeral local storage usage exceeds the total limit of containers 200Gi. ",
        "DiskFull",
        "/var/cache/lorarl",
    ),
    "a container's limit": (
        'Container ray-worker exceeded its local ephemeral storage limit "10Gi". ',
        "DiskFull",
        "diskPerNode",
    ),
    "a full disk": (
        LOW.format(DISK) + USED.format("ray-worker", "146800640Ki", "0", DISK),
        "DiskFull",
        "cluster.diskPerNode",
    ),
    "a node without memory": (
        LOW.format("memory") + USED.format("ray-worker", "150Gi", "64Gi", "memory"),
        "OutOfMemory",
        "cluster.memoryPerNode",
    ),
    "shared memory": (
        'Usage of EmptyDir volume "shared-mem" exceeds the limit "16Gi". ',
        "OutOfMemory",
        "cluster.sharedMemory",
    ),
    "the user's own volume": ('Usage of EmptyDir volume "mine" exceeds the limit "1Gi". ', "DiskFull", "volume mine"),
}
OTHERS = {
    "within its request": LOW.format("memory") + USED.format("ray-worker", "60Gi", "64Gi", "memory"),
    "KubeRay's submitter": LOW.format("memory") + USED.format("ray-job-submitter", "300Mi", "200Mi", "memory"),
    "nothing said": LOW.format(DISK),
    "too many processes": LOW.format("pids") + USED.format("ray-worker", "900", "0", "pids"),
}


def evicted(message, role="worker"):
    """A pod as the kubelet leaves it, and its twin that only has the condition."""
    disrupted = condition("DisruptionTarget", True, "TerminationByKubelet", message)
    whole = {"phase": "Failed", "reason": "Evicted", "message": message}
    return raw_pod(role, conditions=[disrupted], **whole), raw_pod(role, conditions=[disrupted])


def ended_with(pod, **status):
    head = raw_pod("head", conditions=[condition("Ready", True)])
    return decided(raw_job(status=running_status(**status)), raw_ray_job(**RUNNING), pods=[head, pod])


class TestWhoseFault:
    @pytest.mark.parametrize("name", OWN)
    def test_what_the_job_used_itself_is_its_failure(self, name):
        message, reason, fix = OWN[name]
        for pod in evicted(message):
            decision = ended_with(pod)
            assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)
            waits = conditions(decision)["Running"]
            assert waits["reason"] == "BackingOff"
            assert f"ended with {reason}" in waits["message"]
            assert fix in waits["message"]

    @pytest.mark.parametrize("name", OTHERS)
    def test_what_others_used_is_a_preemption(self, name):
        for pod in evicted(OTHERS[name]):
            decision = ended_with(pod)
            assert (decision.status["attempts"], decision.status["preemptions"]) == (0, 1)

    def test_the_heads_fields_are_named_for_the_head(self):
        message = LOW.format(DISK) + USED.format("ray-head", "9Gi", "0", DISK)
        decision = decided(raw_job(status=running_status()), raw_ray_job(**RUNNING), pods=[evicted(message, "head")[0]])
        assert "cluster.head.disk" in conditions(decision)["Running"]["message"]

    def test_a_trainer_that_was_interrupted_by_it_does_not_hide_it(self):
        failure = {"reason": "Interrupted", "message": "SIGTERM", "attempt": 1}
        failed = raw_ray_job(jobDeploymentStatus="Failed", jobStatus="FAILED", endTime=ago(30))
        pod = evicted(OWN["a volume's limit"][0])[0]
        decision = decided(raw_job(status=running_status(failure=failure)), failed, pods=[pod])
        assert (decision.status["attempts"], decision.status["preemptions"]) == (1, 0)

    def test_before_the_attempt_runs_too(self):
        pods = [raw_pod("worker", phase="Failed", reason="Evicted", message=OWN["a volume's limit"][0])] * 3
        decision = decided(
            raw_job({"backoffLimit": 0}, status_of("Starting")),
            raw_ray_job(jobDeploymentStatus="Initializing"),
            pods=pods,
        )
        assert conditions(decision)["Failed"]["reason"] == "DiskFull"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("1500m", 1.5),
        ("2e3", 2000),
        ("1E", 1e18),
        ("64Gi", 64 * 2**30),
        ("53004Ki", 53004 * 1024),
        ("3k", 3000),
        ("1.5G", 1.5e9),
        ("1K", None),
        ("", None),
        ("..", None),
        ("10 Gi", None),
    ],
)
def test_quantities(text, number):
    assert quantity(text) == number
