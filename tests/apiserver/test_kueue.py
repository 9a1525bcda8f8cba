"""Jobs in a queue of the real Kueue: they wait, say for what, are preempted and resume. What Kueue writes stays."""

from __future__ import annotations

import json

import pytest

from support.cluster import pods
from support.cluster.client import ApiError, Object
from support.cluster.kueue import (
    PRIORITY_LABEL,
    QUEUE_LABEL,
    add_local_queue,
    add_priority_class,
    add_queue,
    send_to_other_clusters,
    set_quota,
)
from support.cluster.lorarljobs import condition, events, lorarljob, phase, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

QUOTA = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
# With a quota a container needs requests. The head requests 1 CPU and 4 GiB by default.
ONE_GPU = {"gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"}
# Machines change hands in seconds. Other tests measure how long that takes; here a busy test machine must not cause
# failures.
QUEUE_SECONDS = 30.0


@pytest.fixture(scope="module")
def p(kueue_platform: Platform, kueue_replica: Operator) -> Platform:
    return kueue_platform


def queued(namespace: str, name: str, queue: str, **labels: str) -> Object:
    return lorarljob(namespace, name, labels={QUEUE_LABEL: queue, **labels}, cluster=ONE_GPU)


def wait(p: Platform, namespace: str, name: str, wanted: str) -> Object:
    """The job in this phase."""
    return p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == wanted, seconds=QUEUE_SECONDS)


def first_runs_and_second_waits(p: Platform, prefix: str) -> str:
    """Two jobs in a queue with quota for one. The queue has the name of their namespace, which is returned."""
    namespace = p.namespace(prefix)
    add_queue(p.cluster, namespace, namespace, QUOTA)
    p.api.create(queued(namespace, "first", namespace))
    wait(p, namespace, "first", "Running")
    p.api.create(queued(namespace, "second", namespace))
    wait(p, namespace, "second", "Pending")
    return namespace


def test_a_queue_with_quota_for_one(p: Platform) -> None:
    """The second job says what it waits for, and an urgent one preempts the first."""
    namespace = first_runs_and_second_waits(p, "queue")

    def says_why(job: Object) -> bool:
        return "insufficient unused quota for nvidia.com/gpu" in condition(job, "Running").get("message", "")

    job = p.api.wait("LoRARLJob", "second", namespace, says_why, seconds=QUEUE_SECONDS)
    assert (phase(job), condition(job, "Running")["reason"]) == ("Pending", "Queued")
    described = p.cluster.must("describe", "lrj", "second", "-n", namespace)
    assert f"waits in queue {namespace}: couldn't assign flavors" in described
    assert "startTime" not in job["status"], "time in a queue does not count"

    urgent = f"urgent-{namespace}"
    add_priority_class(p.cluster, urgent, 1000)
    p.api.create(queued(namespace, "urgent", namespace, **{PRIORITY_LABEL: urgent}))
    wait(p, namespace, "urgent", "Running")
    job = wait(p, namespace, "first", "Pending")
    assert (job["status"]["preemptions"], job["status"]["attempts"], job["status"]["rayJobName"]) == (1, 0, "first-1")
    assert condition(job, "Disrupted")["reason"] == "Preempted"
    assert "The attempt resumes from its newest checkpoint when there is room" in condition(job, "Disrupted")["message"]
    until(QUEUE_SECONDS, "its pods are gone", lambda: not p.api.list("Pod", namespace, labels="lorarl.io/job=first"))

    p.finish(namespace, "urgent-1", "SUCCEEDED")
    wait(p, namespace, "urgent", "Succeeded")
    until(
        QUEUE_SECONDS,
        "its whole cluster is deleted",
        lambda: not p.api.list("Pod", namespace, labels="lorarl.io/job=urgent"),
    )
    # Kueue decides whose turn it is: the first's, unless Kueue has not put it back into its queue yet.
    names = ("first", "second")
    turn = until(
        QUEUE_SECONDS,
        "one of them runs",
        lambda: next((n for n in names if phase(p.api.get("LoRARLJob", n, namespace)) == "Running"), ""),
    )
    for name in sorted(names, key=lambda name: name != turn):
        job = wait(p, namespace, name, "Running")
        if name == "first":
            assert (job["status"]["preemptions"], job["status"]["rayJobName"]) == (1, "first-1"), (
                "the same RayJob resumes"
            )
            assert condition(job, "Disrupted")["status"] == "False"
        else:
            assert_made_once(p, namespace, "second-1")
        p.finish(namespace, f"{name}-1", "SUCCEEDED")
        wait(p, namespace, name, "Succeeded")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def assert_made_once(p: Platform, namespace: str, name: str) -> None:
    """The operator has written the RayJob once, and has not touched what Kueue writes."""
    rayjob = p.api.get("RayJob", name, namespace)
    assert rayjob is not None
    ours = [entry for entry in rayjob["metadata"]["managedFields"] if entry["manager"].startswith("lorarl")]
    assert [entry["operation"] for entry in ours] == ["Update"], "created once"
    # The API server records the writer before it calls Kueue's webhook, and the time of creation after that.
    assert ours[0]["time"] <= rayjob["metadata"]["creationTimestamp"], "and not written again"
    assert '"f:suspend"' not in json.dumps(ours), "suspend belongs to Kueue"


def test_a_suspended_job_returns_its_quota(p: Platform) -> None:
    namespace = first_runs_and_second_waits(p, "gives")
    p.api.patch("LoRARLJob", "first", {"spec": {"suspend": True}}, namespace)
    wait(p, namespace, "second", "Running")
    wait(p, namespace, "first", "Suspended")
    # The second loses a pod of which its trainer has told nothing. It starts again, and keeps its place.
    pods.evict(p.api, p.pods(namespace, "second-1", pods.WORKER)[0])
    p.api.wait("LoRARLJob", "second", namespace, lambda job: job["status"]["preemptions"] == 1, seconds=QUEUE_SECONDS)
    assert wait(p, namespace, "second", "Running")["status"]["rayJobName"] == "second-1"
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_waiting_job_moves_to_another_queue(p: Platform) -> None:
    """And with more memory, which the other queue has. Nothing is counted."""
    namespace = first_runs_and_second_waits(p, "moves")
    other = f"{namespace}-large"
    add_queue(p.cluster, namespace, other, QUOTA | {"memory": "64Gi"})
    change = {"metadata": {"labels": {QUEUE_LABEL: other}}, "spec": {"cluster": {"memoryPerNode": "32Gi"}}}
    p.api.patch("LoRARLJob", "second", change, namespace)
    job = wait(p, namespace, "second", "Running")
    assert (job["status"]["rayJobName"], job["status"]["restarts"]) == ("second-2", 0)
    assert "Attempt 2 takes its place" in wait_event(p.api, namespace, "second", "Changed")
    (worker,) = p.pods(namespace, "second-2", pods.WORKER)
    assert worker["spec"]["containers"][0]["resources"]["limits"]["memory"] == "32Gi"
    with pytest.raises(ApiError, match="may change only while nothing runs"):
        p.api.patch("LoRARLJob", "second", {"spec": {"cluster": {"memoryPerNode": "4Gi"}}}, namespace)
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_higher_priority_is_honoured_while_a_job_waits(p: Platform) -> None:
    namespace = first_runs_and_second_waits(p, "raised")
    urgent = f"urgent-{namespace}"
    add_priority_class(p.cluster, urgent, 1000)
    p.api.patch("LoRARLJob", "second", {"metadata": {"labels": {PRIORITY_LABEL: urgent}}}, namespace)
    wait(p, namespace, "second", "Running")
    wait(p, namespace, "first", "Pending")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_missing_queue_is_reported(p: Platform) -> None:
    namespace = p.namespace("nowhere")
    p.api.create(queued(namespace, "lost", "no-such-queue"))
    job = p.api.wait(
        "LoRARLJob",
        "lost",
        namespace,
        lambda job: "no-such-queue" in condition(job, "Running").get("message", ""),
        seconds=QUEUE_SECONDS,
    )
    assert condition(job, "Running")["reason"] == "Queued"
    until(QUEUE_SECONDS, "it says how to see the queues", lambda: "doesn't exist" in message(p, namespace, "lost"))
    p.api.delete("LoRARLJob", "lost", namespace)


def test_with_a_default_queue_the_label_is_not_needed(p: Platform) -> None:
    """Kueue labels RayJobs without a queue if the namespace has a LocalQueue `default`."""
    namespace = p.namespace("default")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    add_local_queue(p.cluster, namespace, "default", namespace)
    p.api.create(lorarljob(namespace, "plain", cluster=ONE_GPU))
    wait(p, namespace, "plain", "Running")
    rayjob = p.api.get("RayJob", "plain-1", namespace)
    assert rayjob is not None
    assert rayjob["metadata"]["labels"][QUEUE_LABEL] == "default"
    p.api.delete("LoRARLJob", "plain", namespace)


def test_a_clean_up_that_waits_in_the_queue_is_reported_and_resumes(p: Platform) -> None:
    """With a LocalQueue `default` in the namespace Kueue also manages Jobs, such as the clean-up."""
    namespace = p.namespace("cleanup")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    add_local_queue(p.cluster, namespace, "default", namespace)
    checkpoint = {"uri": "s3://team/adapters", "deletionPolicy": "Delete"}
    p.api.create(lorarljob(namespace, "removed", cluster=ONE_GPU, checkpoint=checkpoint))
    wait(p, namespace, "removed", "Running")
    p.api.patch("LoRARLJob", "removed", {"spec": {"suspend": True}}, namespace)
    wait(p, namespace, "removed", "Suspended")
    p.api.create(lorarljob(namespace, "other", cluster=ONE_GPU))
    wait(p, namespace, "other", "Running")

    def in_use() -> dict[str, str]:
        queue = p.api.get("ClusterQueue", namespace) or {}
        return {one["name"]: one["total"] for one in queue["status"]["flavorsUsage"][0]["resources"]}

    until(QUEUE_SECONDS, "Kueue counts what the other uses", lambda: in_use()["nvidia.com/gpu"] == "1")
    set_quota(p.cluster, namespace, in_use())
    p.api.delete("LoRARLJob", "removed", namespace)
    p.api.wait("Job", "lorarl-removed-cleanup", namespace, lambda job: job["spec"]["suspend"], seconds=QUEUE_SECONDS)
    until(
        QUEUE_SECONDS,
        "the user learns that the clean-up is suspended",
        lambda: any(
            "lorarl-removed-cleanup is suspended" in event["message"] for event in events(p.api, namespace, "removed")
        ),
    )
    assert p.api.get("LoRARLJob", "removed", namespace), "its finalizer keeps it"
    set_quota(p.cluster, namespace, QUOTA | {"cpu": "8"})
    p.api.wait_gone("LoRARLJob", "removed", namespace, seconds=QUEUE_SECONDS)
    assert "s3://team/adapters/removed" in wait_event(p.api, namespace, "removed", "CheckpointsRemoved")
    p.api.delete("LoRARLJob", "other", namespace)


def message(p: Platform, namespace: str, name: str) -> str:
    job = p.api.get("LoRARLJob", name, namespace)
    return str(condition(job or {}, "Running").get("message", ""))


def test_a_queue_of_multikueue_is_refused(p: Platform) -> None:
    """Kueue marks the RayJob at its creation, and KubeRay would ignore it forever."""
    namespace = p.namespace("multi")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    send_to_other_clusters(p.cluster, namespace)
    p.api.create(queued(namespace, "sent", namespace))
    job = wait(p, namespace, "sent", "Failed")
    assert condition(job, "Failed")["reason"] == "MultiKueue"
    assert f"Queue {namespace} sends RayJob sent-1 to other clusters" in condition(job, "Failed")["message"]
    p.api.wait_gone("RayJob", "sent-1", namespace, seconds=QUEUE_SECONDS)
    assert "no admission check of MultiKueue" in wait_event(p.api, namespace, "sent", "MultiKueue")
