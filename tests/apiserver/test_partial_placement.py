"""A job that gets only some of its machines gives them back, and another one runs there: with the real scheduler."""

from __future__ import annotations

from support.cluster.client import Object
from support.cluster.lorarljobs import condition, lorarljob, phase, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform

SECONDS = 60.0


def test_a_job_that_is_placed_in_part_lets_others_run(kueue_platform: Platform, kueue_replica: Operator) -> None:
    """Two nodes: a small job runs on one. The large one needs two, and holds the other, for which a third job waits."""
    p, namespace = kueue_platform, kueue_platform.namespace("part")

    def create(name: str, nodes: int) -> None:
        cluster = {"nodes": nodes, "gpusPerNode": 8, "cpusPerNode": "1", "memoryPerNode": "1Gi"}
        p.api.create(lorarljob(namespace, name, cluster=cluster))

    def wait(name: str, reason: str) -> Object:
        return p.api.wait(
            "LoRARLJob", name, namespace, lambda job: condition(job, "Running").get("reason") == reason, seconds=SECONDS
        )

    create("small", 1)
    wait("small", "Running")
    create("large", 2)
    wait("large", "Unschedulable")
    create("waits", 1)
    told = wait_event(p.api, namespace, "large", "PartlyPlaced")
    assert "Attempt 1 had 1 of 2 pods placed (on node-" in told
    assert "Insufficient nvidia.com/gpu" in told
    wait("waits", "Running")
    large = p.api.get("LoRARLJob", "large", namespace) or {}
    assert (phase(large), large["status"]["rayJobName"], large["status"].get("restarts", 0)) == (
        "Restarting",
        "large-2",
        0,
    )
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
