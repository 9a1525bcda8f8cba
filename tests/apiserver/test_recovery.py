"""A job that loses a worker pod keeps its RayJob, and with it its quota, while another job waits for that."""

from __future__ import annotations

from collections.abc import Callable

from support.cluster import pods
from support.cluster.client import Api, Object, is_ready
from support.cluster.kueue import QUEUE_LABEL, add_queue
from support.cluster.kwok import add_node, mend_node, silence_node
from support.cluster.lorarljobs import condition, lorarljob, phase, report, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

SECONDS = 30.0
QUOTA = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "2"}
TWO_NODES = {"nodes": 2, "gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"}


def names(p: Platform, namespace: str) -> list[str]:
    """The worker pods that are ready, sorted."""
    workers = p.pods(namespace, "first-1", pods.WORKER)
    return sorted(
        pod["metadata"]["name"] for pod in workers if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]
    )


def train(p: Platform, namespace: str, step: int) -> list[str]:
    """Report what the trainer does when its two workers train; return their pods."""
    found = until(SECONDS, "two workers are ready", lambda: len(now := names(p, namespace)) == 2 and now)
    workers = {"attempt": 1, "pods": found}
    report(p.api, namespace, "first", step=step, totalSteps=10, resumedFromStep=step, workers=workers)
    return found


def wait(p: Platform, namespace: str, name: str, reached: Callable[[Object], bool]) -> Object:
    return p.api.wait("LoRARLJob", name, namespace, reached, seconds=SECONDS)


def test_a_job_keeps_its_quota_through_the_loss_of_a_worker(kueue_platform: Platform, kueue_replica: Operator) -> None:
    p, namespace = kueue_platform, kueue_platform.namespace("keeps")
    add_queue(p.cluster, namespace, namespace, QUOTA)

    def queued(name: str) -> Object:
        return lorarljob(namespace, name, labels={QUEUE_LABEL: namespace}, cluster=TWO_NODES, backoffLimit=0)

    p.api.create(queued("first"))
    wait(p, namespace, "first", lambda job: phase(job) == "Running")
    p.api.create(queued("second"))
    wait(p, namespace, "second", lambda job: condition(job, "Running").get("reason") == "Queued")
    (workload,) = [one for one in p.api.list("Workload", namespace) if "first-1" in one["metadata"]["name"]]

    losses = (pods.evict, "EvictionByEvictionAPI"), (delete, "PodDeleted")
    for count, (lose, reason) in enumerate(losses, 1):
        trained = train(p, namespace, count)
        wait(p, namespace, "first", lambda job: condition(job, "Running").get("status") == "True")
        lost = next(one for one in p.pods(namespace, "first-1", pods.WORKER) if one["metadata"]["name"] in trained)
        lose(p.api, lost)
        job = wait(p, namespace, "first", lambda job: condition(job, "Running").get("reason") == "Recovering")
        assert (phase(job), job["status"]["preemptions"], job["status"]["rayJobName"]) == ("Running", count, "first-1")
        assert (condition(job, "Disrupted")["status"], condition(job, "Disrupted")["reason"]) == ("True", reason)
        assert lost["metadata"]["name"] in condition(job, "Running")["message"]
        shown = p.cluster.must("get", "lrj", "first", "-n", namespace)
        assert "Recovering" in shown, shown

        assert train(p, namespace, count) != trained
        job = wait(p, namespace, "first", lambda job: condition(job, "Running").get("status") == "True")
        assert (job["status"]["recoveries"], job["status"]["restarts"]) == (count, count)
        assert condition(job, "Disrupted")["status"] == "False"
    assert "continues after step" in wait_event(p.api, namespace, "first", "Recovered")

    (same,) = [one for one in p.api.list("Workload", namespace) if "first-1" in one["metadata"]["name"]]
    assert same["metadata"]["uid"] == workload["metadata"]["uid"], "one Workload, admitted once"
    waits = p.api.get("LoRARLJob", "second", namespace) or {}
    assert (phase(waits), condition(waits, "Running")["reason"]) == ("Pending", "Queued")
    p.finish(namespace, "first-1", "SUCCEEDED")
    wait(p, namespace, "first", lambda job: phase(job) == "Succeeded")
    wait(p, namespace, "second", lambda job: phase(job) == "Running")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_silent_node_does_not_cost_the_quota_either(kueue_platform: Platform, kueue_replica: Operator) -> None:
    """No kubelet confirms the end of its pod, which KubeRay counts until it is gone."""
    p, namespace = kueue_platform, kueue_platform.namespace("silent")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    cluster = {**TWO_NODES, "terminationGracePeriodSeconds": 1}
    for name in ("first", "second"):
        p.api.create(lorarljob(namespace, name, labels={QUEUE_LABEL: namespace}, cluster=cluster))
        wait(p, namespace, "first", lambda job: phase(job) == "Running")
    add_node(p.cluster, "spare", gpus=8)
    trained = train(p, namespace, 1)
    (head,) = p.pods(namespace, "first-1", pods.HEAD)
    lost = next(
        one for one in p.pods(namespace, "first-1", pods.WORKER) if one["spec"]["nodeName"] != head["spec"]["nodeName"]
    )
    name, node = lost["metadata"]["name"], lost["spec"]["nodeName"]
    silence_node(p.cluster, node)
    try:
        gone = {"attempt": 1, "pods": trained, "lost": f"the machine of {name} does not respond"}
        report(p.api, namespace, "first", step=1, totalSteps=10, workers=gone)
        wait(p, namespace, "first", lambda job: condition(job, "Running").get("reason") == "Recovering")
        assert (p.api.get("Pod", name, namespace) or {})["metadata"]["deletionTimestamp"], "it is still there"
        p.api.wait_gone("Pod", name, namespace, seconds=SECONDS)
        now = train(p, namespace, 1)
        assert name not in now
        job = wait(p, namespace, "first", lambda job: condition(job, "Running").get("status") == "True")
        assert (job["status"]["recoveries"], job["status"]["rayJobName"]) == (1, "first-1")
        waits = p.api.get("LoRARLJob", "second", namespace) or {}
        assert (phase(waits), condition(waits, "Running")["reason"]) == ("Pending", "Queued")
    finally:
        mend_node(p.cluster, node)
        p.api.delete("Node", "spare")
        p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def delete(api: Api, pod: Object) -> None:
    api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
