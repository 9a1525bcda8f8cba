"""An attempt that is lost with its head keeps its RayJob, and with it its quota, while another job waits for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cluster import pods
from support.cluster.client import Api, Object
from support.cluster.kueue import QUEUE_LABEL, add_queue, workload_of
from support.cluster.kwok import add_node, silence_node
from support.cluster.lorarljobs import condition, lorarljob, phase, report, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform

SECONDS = 30.0
QUOTA = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
ONE_GPU = {"gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"}


@pytest.fixture
def p(kueue_platform: Platform, kueue_replica: Operator) -> Platform:
    return kueue_platform


@pytest.fixture
def namespace(p: Platform) -> str:
    """Where `first` runs and `second` waits for its quota."""
    name = p.namespace("in-place")
    add_queue(p.cluster, name, name, QUOTA)
    for job in ("first", "second"):
        p.api.create(lorarljob(name, job, labels={QUEUE_LABEL: name}, cluster=ONE_GPU))
        wait(p, name, "first", lambda job: phase(job) == "Running")
    wait(p, name, "second", lambda job: condition(job, "Running").get("reason") == "Queued")
    return name


def wait(p: Platform, namespace: str, name: str, reached: Callable[[Object], bool]) -> Object:
    return p.api.wait("LoRARLJob", name, namespace, reached, seconds=SECONDS)


def delete(api: Api, pod: Object) -> None:
    api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])


@pytest.mark.parametrize(
    ("role", "lose", "reasons"),
    [
        (pods.HEAD, delete, {"HeadLost", "PodDeleted"}),
        (pods.HEAD, pods.evict, {"EvictionByEvictionAPI", "HeadLost"}),
        (pods.WORKER, delete, {"PodDeleted"}),
    ],
    ids=["head-deleted", "head-evicted", "worker-of-a-silent-trainer"],
)
def test_the_job_keeps_its_workload(
    p: Platform, namespace: str, role: str, lose: Callable[[Api, Object], None], reasons: set[str]
) -> None:
    before = workload_of(p.api, namespace, "first-1")
    cluster = p.api.get("RayJob", "first-1", namespace)["status"]["rayClusterName"]
    report(p.api, namespace, "first", step=3, totalSteps=10)
    lose(p.api, p.pods(namespace, "first-1", role)[0])
    job = wait(p, namespace, "first", lambda job: job["status"]["preemptions"] == 1 and phase(job) == "Running")
    status = job["status"]
    assert (status["rayJobName"], status["restartsInPlace"], status["attempts"]) == ("first-1", 1, 0)
    told = wait_event(p.api, namespace, "first", "Restarting")
    assert any(f"ended with {reason}: " in told for reason in reasons), told
    assert "keeps its place in the queue" in told
    rayjob = p.api.get("RayJob", "first-1", namespace)
    assert rayjob["status"]["rayClusterName"] != cluster
    assert workload_of(p.api, namespace, "first-1") == before, "one Workload, admitted once"
    waits = p.api.get("LoRARLJob", "second", namespace)
    assert (phase(waits), condition(waits, "Running")["reason"]) == ("Pending", "Queued")

    p.finish(namespace, "first-1", "SUCCEEDED")
    wait(p, namespace, "first", lambda job: phase(job) == "Succeeded")
    wait(p, namespace, "second", lambda job: phase(job) == "Running")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_failure_gives_the_quota_back(p: Platform, namespace: str) -> None:
    """It waits before its next attempt, and others should not wait for that. KubeRay alone would start it at once."""
    failure = {"reason": "RewardFailed", "message": "no such file", "attempt": 1, "time": "2099-01-01T00:00:00Z"}
    report(p.api, namespace, "first", step=3, totalSteps=10, failure=failure)
    p.finish(namespace, "first-1", "FAILED")
    job = wait(p, namespace, "first", lambda job: job["status"]["rayJobName"] == "first-2")
    assert (job["status"]["attempts"], job["status"]["preemptions"]) == (1, 0)
    assert "restartsInPlace" not in job["status"]
    wait(p, namespace, "second", lambda job: phase(job) == "Running")
    p.api.wait_gone("RayJob", "first-1", namespace, seconds=SECONDS)
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_node_is_lost_with_head_and_worker(p: Platform) -> None:
    """Nothing confirms the end of their pods. It is one loss, and one fault of the node: two would cost the quota."""
    namespace, size = p.namespace("lost-node"), ONE_GPU | {"terminationGracePeriodSeconds": 1}
    add_queue(p.cluster, namespace, namespace, QUOTA)
    others = [node["metadata"]["name"] for node in p.api.list("Node")]
    add_node(p.cluster, "doomed", gpus=8)
    try:
        p.cluster.must("cordon", *others)
        p.api.create(lorarljob(namespace, "first", labels={QUEUE_LABEL: namespace}, cluster=size))
        wait(p, namespace, "first", lambda job: phase(job) == "Running")
        p.cluster.must("uncordon", *others)
        p.api.create(lorarljob(namespace, "second", labels={QUEUE_LABEL: namespace}, cluster=size))
        wait(p, namespace, "second", lambda job: condition(job, "Running").get("reason") == "Queued")
        before = workload_of(p.api, namespace, "first-1")
        assert {pod["spec"]["nodeName"] for pod in p.pods(namespace, "first-1")} == {"doomed"}
        (worker,) = p.pods(namespace, "first-1", pods.WORKER)
        workers = {"attempt": 1, "pods": [worker["metadata"]["name"]]}
        report(p.api, namespace, "first", step=3, totalSteps=10, workers=workers)
        silence_node(p.cluster, "doomed")
        restarted = wait(p, namespace, "first", lambda job: job["status"].get("restartsInPlace") == 1)
        status = wait(p, namespace, "first", lambda job: phase(job) == "Running")["status"]
        assert (restarted["status"]["preemptions"], status["attempts"], status["rayJobName"]) == (1, 0, "first-1")
        assert [(one["name"], one["attempts"]) for one in status["faultyNodes"]] == [("doomed", 1)]
        assert workload_of(p.api, namespace, "first-1") == before, "one Workload, admitted once"
        assert condition(p.api.get("LoRARLJob", "second", namespace), "Running")["reason"] == "Queued"
    finally:
        p.cluster.must("uncordon", *others)
        p.api.delete("Node", "doomed")
        p.cluster.must("delete", "lrj", "--all", "-n", namespace)
