"""The operator as a process of its own, under the chart's rights, with the real KubeRay: jobs from their creation to their end."""

from __future__ import annotations

import pytest

from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.operator import Operator, quiet
from support.cluster.platform import Platform
from support.cluster.processes import until


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform) -> Platform:
    return kuberay_platform


def writes(replica: Operator) -> float:
    """Writes about jobs: not the lease, not Events."""
    samples = replica.samples("lorarl_operator_api_writes_total")
    return sum(value for labels, value in samples if labels["resource"] not in ("leases", "events"))


def test_a_job_from_its_creation_to_its_end_in_twelve_writes(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    before = writes(replica)
    p.api.create(lorarljob(namespace, "whole"))
    p.api.wait("RayJob", "whole-1", namespace, bool, seconds=5)
    p.wait_running(namespace, "whole-1", seconds=60)
    running = p.api.wait("LoRARLJob", "whole", namespace, lambda job: phase(job) == "Running")
    assert running["status"]["rayJobName"] == "whole-1"
    assert running["status"]["dashboardURL"].startswith("http://")
    assert condition(running, "Running")["status"] == "True"
    assert not running["metadata"].get("annotations"), "kopf has left nothing on the object"
    assert not running["metadata"].get("finalizers")

    report(p.api, namespace, "whole", step=3, totalSteps=10, metrics={"tokensPerSecond": 1200.5})
    until(10, "the step is in the metrics", lambda: replica.metric("lorarl_job_step", job="whole") == 3)
    assert replica.metric("lorarl_job_tokens_per_second", job="whole") == 1200.5
    assert replica.metric("lorarl_jobs", phase="Running") >= 1

    p.finish(namespace, "whole-1", "SUCCEEDED")
    done = p.api.wait("LoRARLJob", "whole", namespace, lambda job: phase(job) == "Succeeded", seconds=30)
    assert condition(done, "Complete")["status"] == "True"
    assert done["status"]["step"] == 3, "the trainer's part is the trainer's"
    assert done["status"]["completionTime"]
    quiet(3, lambda: writes(replica))
    assert writes(replica) - before <= 12

    events = [e for e in p.api.list("Event", namespace) if e["involvedObject"]["kind"] == "LoRARLJob"]
    assert [e["reason"] for e in sorted(events, key=lambda e: int(e["metadata"]["resourceVersion"]))] == [
        "Starting",
        "Running",
        "Succeeded",
    ]
    assert replica.metric("lorarl_operator_errors_total") == 0


def test_nothing_is_written_while_nothing_changes(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "calm"))
    p.wait_running(namespace, "calm-1", seconds=60)
    p.api.wait("LoRARLJob", "calm", namespace, lambda job: phase(job) == "Running")
    quiet(12, lambda: writes(replica))  # It waits for as long without a write, or fails after a minute.
    p.api.delete("LoRARLJob", "calm", namespace)
    p.api.wait_gone("RayJob", "calm-1", namespace)


def test_suspend_and_resume(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "nap"))
    p.wait_running(namespace, "nap-1", seconds=60)
    p.api.patch("LoRARLJob", "nap", {"spec": {"suspend": True}}, namespace)
    p.api.wait("LoRARLJob", "nap", namespace, lambda job: phase(job) == "Suspended", seconds=30)
    assert p.api.get("RayJob", "nap-1", namespace) is None
    p.api.patch("LoRARLJob", "nap", {"spec": {"suspend": False}}, namespace)
    job = p.api.wait("LoRARLJob", "nap", namespace, lambda job: phase(job) == "Running", seconds=60)
    assert job["status"]["rayJobName"].startswith("nap-")
    assert job["status"].get("attempts", 0) == 0
    p.api.delete("LoRARLJob", "nap", namespace)


def test_a_lost_attempt_is_made_anew_and_not_counted_as_a_failure(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    p.api.create(lorarljob(namespace, "lost"))
    p.wait_running(namespace, "lost-1", seconds=60)
    p.api.wait("LoRARLJob", "lost", namespace, lambda job: phase(job) == "Running")
    p.api.delete("RayJob", "lost-1", namespace)
    job = p.api.wait("LoRARLJob", "lost", namespace, lambda job: job["status"]["rayJobName"] == "lost-2", seconds=30)
    assert (job["status"].get("preemptions"), job["status"].get("attempts", 0)) == (1, 0)
    p.wait_running(namespace, "lost-2", seconds=60)
    assert [one["metadata"]["name"] for one in p.api.list("RayJob", namespace)] == ["lost-2"]
    p.api.delete("LoRARLJob", "lost", namespace)


def test_a_foreign_rayjob_with_the_name_is_left_alone_and_waited_for(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    foreign = p.api.create(
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {"name": "taken-1", "namespace": namespace},
            "spec": {"entrypoint": "true", "suspend": True, "shutdownAfterJobFinishes": True, "rayClusterSpec": {"headGroupSpec": HEAD}},
        }
    )
    p.api.create(lorarljob(namespace, "taken"))
    job = p.api.wait("LoRARLJob", "taken", namespace, lambda job: "taken-1" in condition(job, "Running").get("message", ""))
    assert phase(job) == "Pending"
    held = p.api.get("RayJob", "taken-1", namespace)
    assert held is not None and held["metadata"]["uid"] == foreign["metadata"]["uid"]
    p.api.delete("RayJob", "taken-1", namespace)
    ours = p.api.wait("RayJob", "taken-1", namespace, lambda one: one["metadata"]["uid"] != foreign["metadata"]["uid"], seconds=60)
    assert ours["metadata"]["ownerReferences"][0]["name"] == "taken"
    p.api.delete("LoRARLJob", "taken", namespace)


HEAD = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray-head", "image": "test.invalid/runs:1"}]}}}


def test_a_job_that_the_api_server_refuses_says_so_and_does_not_stop_others(p: Platform, replica: Operator) -> None:
    namespace = p.namespace()
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    p.api.create({**quota, "spec": {"hard": {"count/rayjobs.ray.io": "0"}}})
    p.api.wait("ResourceQuota", "none", namespace, lambda one: one.get("status", {}).get("hard"))
    p.api.create(lorarljob(namespace, "refused"))
    job = p.api.wait("LoRARLJob", "refused", namespace, lambda job: "quota" in condition(job, "Running").get("message", ""), seconds=30)
    assert phase(job) == "Pending"
    other = p.namespace()
    p.api.create(lorarljob(other, "fine"))
    p.api.wait("RayJob", "fine-1", other, bool, seconds=5)
    p.api.delete("ResourceQuota", "none", namespace)
    p.api.wait("RayJob", "refused-1", namespace, bool, seconds=40)
    for where, name in ((namespace, "refused"), (other, "fine")):
        p.api.delete("LoRARLJob", name, where)


def test_probes_and_metrics(replica: Operator) -> None:
    assert replica.probe("/healthz") == (200, "ok\n")
    assert replica.probe("/readyz") == (200, "ok\n")
    assert replica.probe("/nothing")[0] == 404
    assert replica.metric("lorarl_operator_watches") == 5
    assert replica.resident_bytes < 150e6
