"""Pods that never start: KubeRay makes them again many times a second, until lorarl ends the attempt and says why."""

from __future__ import annotations

from support.cluster.client import Object
from support.cluster.kwok import INIT_FAILS, REFUSED
from support.cluster.lorarljobs import condition, lorarljob, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform

SECONDS = 30.0
FEW = 20
"""Pods that KubeRay may make while the operator learns of three. Without an end it made 114 in 25 s."""


def made(p: Platform, namespace: str) -> int:
    """How many worker pods KubeRay has made, by its own Events."""
    found = p.api.list("Event", namespace, fields="involvedObject.kind=RayCluster,reason=CreatedWorkerPod")
    return sum(int(event.get("count") or 1) for event in found)


def test_pods_that_nodes_refuse_are_a_machines_fault(kuberay_platform: Platform, replica: Operator) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("refused")
    here = {"kubernetes.io/hostname": "node-0"}
    p.api.create(lorarljob(namespace, "numa", cluster={"image": REFUSED, "nodeSelector": here}, backoffLimit=0))

    def restarted(job: Object) -> bool:
        return int(job.get("status", {}).get("preemptions", 0)) >= 1

    job = p.api.wait("LoRARLJob", "numa", namespace, restarted, seconds=SECONDS)
    assert 3 <= made(p, namespace) <= FEW
    disrupted = condition(job, "Disrupted")
    assert disrupted["reason"] == "PodRefused"
    assert "on node node-0" in disrupted["message"]
    assert "Resources cannot be allocated with Topology locality" in disrupted["message"]
    assert "TopologyAffinityError" in wait_event(p.api, namespace, "numa", "Restarting")

    # After the second attempt, the scheduler may not use the node any more.
    def avoided(job: Object) -> bool:
        waits = condition(job, "Running")
        return waits["reason"] == "Unschedulable" and "lorarl avoids node-0" in waits["message"]

    job = p.api.wait("LoRARLJob", "numa", namespace, avoided, seconds=SECONDS)
    (node,) = job["status"]["faultyNodes"]
    assert (node["name"], node["attempts"], job["status"]["preemptions"]) == ("node-0", 2, 2)
    p.api.delete("LoRARLJob", "numa", namespace)


def test_an_init_container_that_fails_is_the_jobs_fault(kuberay_platform: Platform, replica: Operator) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("init")
    p.api.create(lorarljob(namespace, "fetches", cluster={"image": INIT_FAILS}, backoffLimit=0))

    def failed(job: Object) -> bool:
        return condition(job, "Failed").get("status") == "True"

    job = p.api.wait("LoRARLJob", "fetches", namespace, failed, seconds=SECONDS)
    assert 3 <= made(p, namespace) <= FEW
    assert (job["status"]["attempts"], condition(job, "Failed")["reason"]) == (1, "InitFailed")
    assert "exit code 22. Its last output: curl: (22) 404." in condition(job, "Failed")["message"]
    assert "curl: (22) 404" in wait_event(p.api, namespace, "fetches", "InitFailed")
    p.api.delete("LoRARLJob", "fetches", namespace)
