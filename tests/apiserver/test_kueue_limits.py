"""What an administrator of the real Kueue ends stays ended, and a job says so."""

from __future__ import annotations

import pytest

from support.cluster.client import Object
from support.cluster.kueue import QUEUE_LABEL, add_queue
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

QUOTA = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
ONE_GPU = {"gpusPerNode": 1, "cpusPerNode": "1", "memoryPerNode": "4Gi"}
QUEUE_SECONDS = 60.0
TIME_LIMIT_LABEL = "kueue.x-k8s.io/max-exec-time-seconds"


@pytest.fixture(scope="module")
def p(kueue_platform: Platform, kueue_replica: Operator) -> Platform:
    return kueue_platform


def queued(namespace: str, name: str, queue: str, **labels: str) -> Object:
    return lorarljob(namespace, name, labels={QUEUE_LABEL: queue, **labels}, cluster=ONE_GPU)


def wait(p: Platform, namespace: str, name: str, wanted: str) -> Object:
    """The job in this phase."""
    return p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == wanted, seconds=QUEUE_SECONDS)


def workload_of(p: Platform, namespace: str, job: str) -> str:
    """Name of the Workload of the job's RayJob."""
    named = (one["metadata"]["name"] for one in p.api.list("Workload", namespace))
    return next(name for name in named if name.startswith(f"rayjob-{job}-"))


@pytest.mark.long
def test_a_time_limit_of_the_queue_ends_the_job(p: Platform) -> None:
    """Before, the next attempt followed as soon as Kueue had deleted the RayJob, with a whole new allowance."""
    namespace = p.namespace("limit")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    p.api.create(queued(namespace, "maxt", namespace, **{TIME_LIMIT_LABEL: "6"}))
    job = wait(p, namespace, "maxt", "Failed")
    assert condition(job, "Failed")["reason"] == "QueueTimeLimit"
    assert (job["status"]["restarts"], job["status"]["rayJobName"]) == (0, "maxt-1")
    until(QUEUE_SECONDS, "its RayJob is gone", lambda: not p.api.list("RayJob", namespace))
    p.api.delete("LoRARLJob", "maxt", namespace)


def test_a_workload_that_an_administrator_stops_stays_stopped(p: Platform) -> None:
    namespace = p.namespace("stopped")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    p.api.create(queued(namespace, "held", namespace))
    wait(p, namespace, "held", "Running")
    workload = workload_of(p, namespace, "held")
    p.api.patch("Workload", workload, {"spec": {"active": False}}, namespace)
    job = wait(p, namespace, "held", "Pending")
    assert condition(job, "Running")["reason"] == "QueueStopped"
    assert condition(job, "Stalled")["status"] == "True"
    assert f"kueuectl resume workload {workload} -n " in condition(job, "Running")["message"]
    assert job["status"]["preemptions"] == 1
    p.api.patch("Workload", workload, {"spec": {"active": True}}, namespace)
    job = wait(p, namespace, "held", "Running")
    assert (job["status"]["preemptions"], job["status"]["rayJobName"]) == (1, "held-1")
    p.api.delete("LoRARLJob", "held", namespace)


@pytest.mark.long
def test_no_change_lifts_a_stop_that_the_job_does_not_know_yet(p: Platform) -> None:
    """A waiting Workload is looked at now and then only, and a new RayJob would have one that no one has stopped."""
    namespace = p.namespace("unseen")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    p.api.create(queued(namespace, "first", namespace))
    wait(p, namespace, "first", "Running")
    changes: dict[str, Object] = {
        "labelled": {"metadata": {"labels": {TIME_LIMIT_LABEL: "3600"}}},
        "suspended": {"spec": {"suspend": True}},
    }
    made = ["first"]
    for name in changes:
        made.append(name)
        p.api.create(queued(namespace, name, namespace))
        p.api.wait(
            "LoRARLJob", name, namespace, lambda job: condition(job, "Running").get("reason") == "Queued", seconds=60
        )
        until(QUEUE_SECONDS, "each has a Workload", lambda: len(p.api.list("Workload", namespace)) == len(made))
    for name, change in changes.items():
        p.api.patch("Workload", workload_of(p, namespace, name), {"spec": {"active": False}}, namespace)
        p.api.patch("LoRARLJob", name, change, namespace)
        stopped = p.api.wait(
            "LoRARLJob", name, namespace, lambda job: condition(job, "Running")["reason"] == "QueueStopped", seconds=60
        )
        assert (stopped["status"]["rayJobName"], phase(stopped)) == (f"{name}-1", "Pending")
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_rayjob_that_kuberay_refuses_says_so_in_its_queue(p: Platform) -> None:
    namespace = p.namespace("refused")
    add_queue(p.cluster, namespace, namespace, QUOTA)
    cluster = ONE_GPU | {"podTemplateOverrides": {"head": {"spec": {"restartPolicy": "Always"}}}}
    p.api.create(lorarljob(namespace, "wrong", labels={QUEUE_LABEL: namespace}, cluster=cluster))

    def is_refused(job: Object) -> bool:
        return condition(job, "Running").get("reason") == "RayJobRefused"

    job = p.api.wait("LoRARLJob", "wrong", namespace, is_refused, seconds=QUEUE_SECONDS)
    assert "restartPolicy" in condition(job, "Running")["message"]
    p.api.delete("LoRARLJob", "wrong", namespace)
