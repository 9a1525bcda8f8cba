"""How attempts and jobs end, like Jobs of batch/v1: what is a failure, what is a preemption, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

import pytest

from support.cluster import pods
from support.cluster.client import Object
from support.cluster.kwok import ENDS_AT_ONCE, lose_node, mend_node
from support.cluster.lorarljobs import condition, lorarljob, phase, report, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

Loss = Callable[[Platform, str, str], None]


def of(p: Platform, namespace: str, job: str, role: str) -> Object:
    return p.pods(namespace, f"{job}-1", role)[0]


def evict_worker(p: Platform, namespace: str, job: str) -> None:
    pods.evict(p.api, of(p, namespace, job, pods.WORKER))


def evict_by_kubelet(p: Platform, namespace: str, job: str) -> None:
    pods.fail_by_kubelet(p.api, of(p, namespace, job, pods.WORKER))


def delete_worker(p: Platform, namespace: str, job: str) -> None:
    p.api.delete("Pod", of(p, namespace, job, pods.WORKER)["metadata"]["name"], namespace)


def delete_head(p: Platform, namespace: str, job: str) -> None:
    p.api.delete("Pod", of(p, namespace, job, pods.HEAD)["metadata"]["name"], namespace)


def second_head(p: Platform, namespace: str, job: str) -> None:
    """KubeRay does this by itself when its cache is behind, once in some thousand clusters."""
    head = of(p, namespace, job, pods.HEAD)
    kept = {key: head["metadata"][key] for key in ("namespace", "labels", "annotations", "ownerReferences")}
    about = {**kept, "generateName": f"{job}-head-"}
    p.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {**head["spec"], "nodeName": ""}})


def delete_rayjob(p: Platform, namespace: str, job: str) -> None:
    p.api.delete("RayJob", f"{job}-1", namespace)


def delete_raycluster(p: Platform, namespace: str, job: str) -> None:
    (cluster,) = [one for one in p.api.list("RayCluster", namespace) if one["metadata"]["name"].startswith(f"{job}-1-")]
    p.api.delete("RayCluster", cluster["metadata"]["name"], namespace)


def interrupted(p: Platform, namespace: str, job: str) -> None:
    report(
        p.api,
        namespace,
        job,
        failure={"reason": "Interrupted", "message": "the worker was asked to stop", "attempt": 1},
    )
    delete_worker(p, namespace, job)  # without a sign of a loss, the report would count as a failure
    p.finish(namespace, f"{job}-1", "FAILED", "exit code 143")


LOSSES: dict[str, tuple[Loss, str]] = {
    "worker-evicted": (evict_worker, "EvictionByEvictionAPI"),
    "worker-out-of-memory-node": (evict_by_kubelet, "TerminationByKubelet"),
    "worker-deleted": (delete_worker, "PodDeleted"),
    "head-deleted": (delete_head, ""),
    "two-heads": (second_head, "TwoHeads"),
    "rayjob-deleted": (delete_rayjob, "RayJobDeleted"),
    "raycluster-deleted": (delete_raycluster, ""),
    "interrupted": (interrupted, "Interrupted"),
}


def fail(p: Platform, namespace: str, job: str, attempt: int, reason: str = "OutOfMemory") -> None:
    """The trainer reports why, and its attempt fails."""
    message = "CUDA out of memory 🔥; lower trainer.tokensPerMicroBatch"
    report(p.api, namespace, job, failure={"reason": reason, "message": message, "attempt": attempt})
    p.finish(namespace, f"{job}-{attempt}", "FAILED", "exit code 1")


OTHERS: dict[str, Object] = {
    "retries": {"backoffLimit": 1},
    "gives-up": {"backoffLimit": 0},
    "bad-input": {"backoffLimit": 3},
    "crash": {"backoffLimit": 1, "cluster": {"image": ENDS_AT_ONCE}},
    "long": {"activeDeadlineSeconds": 15},
    "late": {"startDeadlineSeconds": 20, "cluster": {"gpusPerNode": 64}},
    "brief": {"ttlSecondsAfterFinished": 1},
}


@pytest.fixture(scope="module")
def namespace(kuberay_platform: Platform, replica: Operator) -> Iterator[str]:
    """A namespace in which all jobs of this file run, after each has had its loss."""
    p = kuberay_platform
    where = p.namespace("end")
    for name in LOSSES:
        p.api.create(lorarljob(where, name, backoffLimit=0))
    for name, spec in OTHERS.items():
        p.api.create(lorarljob(where, name, **spec))
    for name in (*LOSSES, "retries", "gives-up", "bad-input", "brief"):
        p.api.wait("LoRARLJob", name, where, lambda job: phase(job) == "Running", seconds=60)
    for name, (lose, _) in LOSSES.items():
        lose(p, where, name)
    for name in ("retries", "gives-up"):
        fail(p, where, name, 1)
    fail(p, where, "bad-input", 1, "InvalidInput")
    p.finish(where, "brief-1", "SUCCEEDED")
    yield where
    p.api.request("DELETE", f"/apis/lorarl.io/v1alpha1/namespaces/{where}/lorarljobs")


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_preemption_and_the_next_attempt_runs_at_once(
    kuberay_platform: Platform, namespace: str, name: str
) -> None:
    p = kuberay_platform

    def runs_again(job: Object) -> bool:
        return phase(job) == "Running" and bool(job["status"]["rayJobName"] == f"{name}-2")

    job = p.api.wait("LoRARLJob", name, namespace, runs_again, seconds=60)
    assert (job["status"]["attempts"], job["status"]["preemptions"], job["status"]["restarts"]) == (0, 1, 1)
    disrupted = condition(job, "Disrupted")
    assert disrupted["status"] == "False", "the new attempt runs"
    ended = wait_event(p.api, namespace, name, "Restarting")
    assert LOSSES[name][1] in ended
    assert "Attempt 2 resumes from its newest checkpoint" in ended
    assert [one["metadata"]["name"] for one in p.api.list("RayJob", namespace, labels=f"lorarl.io/job={name}")] == [
        f"{name}-2"
    ]


def test_a_failure_is_counted_and_retried_after_a_delay(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    job = p.api.wait(
        "LoRARLJob",
        "retries",
        namespace,
        lambda job: phase(job) == "Running" and job["status"]["attempts"] == 1,
        seconds=60,
    )
    assert job["status"]["preemptions"] == 0
    (failed,) = [
        e for e in p.api.list("Event", namespace, fields="involvedObject.name=retries") if e["reason"] == "BackingOff"
    ]
    assert "CUDA out of memory 🔥" in failed["message"]
    assert "Attempt 2 follows in 10 s (failure 1, backoffLimit 1)" in failed["message"]
    made = p.api.get("RayJob", "retries-2", namespace)
    assert made is not None
    waited = time(made["metadata"]["creationTimestamp"]) - time(
        failed["lastTimestamp"] or failed["metadata"]["creationTimestamp"]
    )
    assert waited >= 8, "times are whole seconds, and the Event is written after the delay has started"
    fail(p, namespace, "retries", 2)
    job = p.api.wait("LoRARLJob", "retries", namespace, lambda job: phase(job) == "Failed", seconds=30)
    assert job["status"]["attempts"] == 2
    assert condition(job, "Failed")["reason"] == "OutOfMemory"


def test_bad_input_is_not_retried(kuberay_platform: Platform, namespace: str) -> None:
    """Another attempt would take a GPU to say the same."""
    p = kuberay_platform
    job = p.api.wait("LoRARLJob", "bad-input", namespace, lambda job: phase(job) == "Failed", seconds=30)
    assert job["status"]["attempts"] == 1
    assert job["status"]["failure"]["reason"] == condition(job, "Failed")["reason"] == "InvalidInput"
    assert "Attempt 1 failed, and so would another one. CUDA out of" in condition(job, "Failed")["message"]
    assert p.api.get("RayJob", "bad-input-2", namespace) is None


def test_after_backoff_limit_it_is_failed_and_says_why(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    job = p.api.wait("LoRARLJob", "gives-up", namespace, lambda job: phase(job) == "Failed", seconds=30)
    failed = condition(job, "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "OutOfMemory")
    assert (
        "Attempt 1 failed, and backoffLimit is 0. CUDA out of memory 🔥; lower trainer.tokensPerMicroBatch"
        in failed["message"]
    )
    assert job["status"]["completionTime"]
    until(10, "its workers are gone", lambda: not p.pods(namespace, "gives-up-1", pods.WORKER))


def test_a_head_that_exits_at_once_is_counted_each_time(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    job = p.api.wait("LoRARLJob", "crash", namespace, lambda job: phase(job) == "Failed", seconds=60)
    assert (job["status"]["attempts"], job["status"]["preemptions"]) == (2, 0)
    assert condition(job, "Failed")["reason"] == "HeadExited"
    until(10, "all its pods are gone", lambda: not p.api.list("Pod", namespace, labels="lorarl.io/job=crash"))


def test_deadlines(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    job = p.api.wait("LoRARLJob", "long", namespace, lambda job: phase(job) == "Failed", seconds=60)
    assert condition(job, "Failed")["reason"] == "DeadlineExceeded"
    assert time(job["status"]["completionTime"]) - time(job["status"]["startTime"]) >= 15
    job = p.api.wait("LoRARLJob", "late", namespace, lambda job: phase(job) == "Failed", seconds=60)
    failed = condition(job, "Failed")
    assert failed["reason"] == "StartDeadlineExceeded"
    assert "Attempt 1 did not run within 20 s. No node fits worker pod" in failed["message"]
    assert "Insufficient nvidia.com/gpu" in failed["message"]
    until(
        10, "nothing of them is left", lambda: not p.api.list("Pod", namespace, labels="lorarl.io/job in (long,late)")
    )


def test_a_finished_job_is_deleted_after_its_ttl(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    p.api.wait_gone("LoRARLJob", "brief", namespace, seconds=30)
    for kind in ("RayJob", "ConfigMap", "ServiceAccount", "Role", "RoleBinding", "Pod"):
        until(
            15, f"its {kind} is gone", lambda kind=kind: not p.api.list(kind, namespace, labels="lorarl.io/job=brief")
        )


def test_a_lost_node_is_a_preemption(kuberay_platform: Platform, namespace: str) -> None:
    p = kuberay_platform
    p.api.create(lorarljob(namespace, "node-lost", backoffLimit=0))
    p.api.wait("LoRARLJob", "node-lost", namespace, lambda job: phase(job) == "Running", seconds=30)
    node = of(p, namespace, "node-lost", pods.WORKER)["spec"]["nodeName"]
    lose_node(p.cluster, node)
    try:
        job = p.api.wait("LoRARLJob", "node-lost", namespace, lambda job: job["status"]["preemptions"] == 1, seconds=15)
    finally:
        mend_node(p.cluster, node)
    assert "DeletionByTaintManager" in condition(job, "Disrupted")["reason"]
    assert job["status"]["attempts"] == 0


def time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
