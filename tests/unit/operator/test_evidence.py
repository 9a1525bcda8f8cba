"""What is asked of the API server about a stuck job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lorarl_operator.decision import Want
from lorarl_operator.evidence import EvidenceSource
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import EVENTS, Resource
from lorarl_operator.models import Evidence
from unit.operator.observed_world import ago, condition, observed, raw_job, raw_pod, raw_ray_job

WORKLOAD = {
    "metadata": {"name": "rayjob-demo"},
    "status": {"conditions": [condition("QuotaReserved", False, "Pending", "insufficient unused quota")]},
}
SCALE_UP = {
    "involvedObject": {"kind": "Pod", "name": "demo-1-worker"},
    "reason": "TriggeredScaleUp",
    "message": "pod triggered scale-up: [{gpu-pool 0->1 (max: 8)}]",
    "lastTimestamp": ago(5),
}


class ApiServer(Client):
    """Serves Kueue's Workloads in these versions, and one Event."""

    def __init__(self, *versions: str) -> None:
        self.versions = list(versions)
        self.asked: list[str] = []

    async def served_versions(self, group: str) -> list[str]:
        self.asked.append(group)
        return self.versions

    async def pages(
        self, resource: Resource, namespace: str | None, *, labels: str = "", fields: str = "", limit: int = 250
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.asked.append(f"{resource.version} {fields}".strip())
        if resource != EVENTS and resource.version not in self.versions:
            raise ApiError(resource.path(namespace), 404, "NotFound", "the server could not find the resource")
        yield [SCALE_UP] if fields == "reason=TriggeredScaleUp" else [] if resource == EVENTS else [WORKLOAD], "1"


def fetched(server: ApiServer, want: Want, times: int = 1, **found: Any) -> Evidence:
    async def story() -> Evidence:
        source = EvidenceSource(server)
        return [
            await source.fetch(observed(raw_job(), raw_ray_job(suspend=True), **found), want) for _ in range(times)
        ][-1]

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("served", "read"), [(["v1beta2", "v1beta1"], "v1beta2"), (["v1beta1"], "v1beta1"), (["v1"], "v1")]
)
def test_workloads_are_read_in_a_version_that_kueue_has(served: list[str], read: str) -> None:
    """Before, an older Kueue was said to have made no Workload."""
    server = ApiServer(*served)
    evidence = fetched(server, Want.WORKLOAD, times=2)
    assert evidence.workload is not None
    assert evidence.workload.conditions[0][3] == "insufficient unused quota"
    assert server.asked == ["kueue.x-k8s.io", read, read], "the versions are asked for once"


def test_without_kueue_there_is_no_workload() -> None:
    evidence = fetched(ApiServer(), Want.WORKLOAD)
    assert evidence.workload is not None and evidence.workload.name == ""


def test_an_upgrade_of_kueue_is_noticed() -> None:
    async def story() -> None:
        server = ApiServer("v1beta1")
        source, seen = EvidenceSource(server), observed(raw_job(), raw_ray_job(suspend=True))
        found = []
        for versions in (["v1beta1"], ["v1beta2"], ["v1beta2"]):
            server.versions = versions
            found.append((await source.fetch(seen, Want.WORKLOAD)).workload)
        assert [each and each.name for each in found] == ["rayjob-demo", "", "rayjob-demo"]

    asyncio.run(story())


def test_nodes_that_are_being_added_are_asked_for_where_a_pod_waits() -> None:
    waiting = raw_pod(
        nodeName="", phase="Pending", conditions=[condition("PodScheduled", False, "Unschedulable", "0/3")]
    )
    server = ApiServer()
    (event,) = fetched(server, Want.EVENTS, times=2, pods=[waiting]).events
    assert event.reason == "TriggeredScaleUp"
    assert server.asked == ["v1 type=Warning", "v1 reason=TriggeredScaleUp"], "one answer serves for a while"
    server = ApiServer()
    assert fetched(server, Want.EVENTS, pods=[raw_pod()]).events == ()
    assert server.asked == ["v1 type=Warning"]
