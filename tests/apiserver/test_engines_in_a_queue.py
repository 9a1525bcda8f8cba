"""A queue of Kueue counts a job's separate engines."""

from __future__ import annotations

from apiserver.engine_job import JOB
from support.cluster.client import Object
from support.cluster.kueue import QUEUE_LABEL, add_queue, set_quota
from support.cluster.lorarljobs import condition, lorarljob, phase
from support.cluster.operator import Operator
from support.cluster.platform import Platform

SECONDS = 30.0


def test_a_queue_counts_the_engines(kueue_platform: Platform, kueue_replica: Operator) -> None:
    """Its quota has one GPU less than trainer and engines need, and then as many."""
    p, namespace = kueue_platform, kueue_platform.namespace("engines")
    few = {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"}
    add_queue(p.cluster, namespace, namespace, few)
    p.api.create(lorarljob(namespace, "job", labels={QUEUE_LABEL: namespace}, **JOB))

    def waits(job: Object) -> bool:
        return "nvidia.com/gpu" in condition(job, "Running").get("message", "")

    job = p.api.wait("LoRARLJob", "job", namespace, waits, seconds=SECONDS)
    assert (phase(job), condition(job, "Running")["reason"]) == ("Pending", "Queued")
    set_quota(p.cluster, namespace, few | {"nvidia.com/gpu": "3"})
    p.api.wait("LoRARLJob", "job", namespace, lambda job: phase(job) == "Running", seconds=SECONDS)
    [workload] = [one for one in p.api.list("Workload", namespace) if "job-1" in one["metadata"]["name"]]
    sets = {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
    assert sets == {"head": 1, "workers": 1, "engines": 2}
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
