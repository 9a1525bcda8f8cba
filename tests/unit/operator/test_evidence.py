"""What is asked of the API server about a stuck job."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lorarl_operator.control.evidence import EvidenceSource
from lorarl_operator.decide.decision import Want
from lorarl_operator.decide.models import Evidence
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import EVENTS, Resource
from support import virtual_time
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


def test_one_answer_about_the_nodes_serves_all_jobs_for_a_while() -> None:
    class Nodes(ApiServer):
        async def pages(self, resource: Resource, *arguments: Any, **more: Any) -> Any:
            self.asked.append(more["fields"])
            if self.versions:
                raise ApiError("GET /api/v1/nodes", 403, "Forbidden", "nodes is forbidden")
            yield [{"metadata": {"name": "node-7"}}], "1"

    clock = [0.0]

    async def answers(server: Nodes, *times: float) -> list[Evidence]:
        source, found = EvidenceSource(server, lambda: clock[0]), []
        for clock[0] in times:
            seen = observed(raw_job(), raw_ray_job())
            found += await asyncio.gather(*(source.fetch(seen, Want.CORDONED) for _ in range(3)))
        return found

    server = Nodes()
    assert set(asyncio.run(answers(server, 0.0, 4.9, 5.0))) == {Evidence(cordoned=frozenset(["node-7"]))}
    assert server.asked == ["spec.unschedulable=true"] * 2
    denied = Nodes("no rights")
    assert set(asyncio.run(answers(denied, 0.0, 299.0, 300.0))) == {Evidence(refused=True)}
    assert len(denied.asked) == 2, "an operator with watchNamespaces does not ask all the time"


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
    asked = ["v1 type=Warning", "v1 reason=TriggeredScaleUp", "v1 reason=Nominated"]
    assert server.asked == asked, "one answer serves for a while"
    server = ApiServer()
    assert fetched(server, Want.EVENTS, pods=[raw_pod()]).events == ()
    assert server.asked == ["v1 type=Warning"]


class SlowApiServer(ApiServer):
    """Each listing takes a second, and is counted by its namespace. It refuses the namespaces in `down`."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: Counter[str | None] = Counter()
        self.running = self.most = 0
        self.down: set[str | None] = set()

    async def pages(
        self, resource: Resource, namespace: str | None, **_: Any
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.listed[namespace] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(1)
        self.running -= 1
        if namespace in self.down:
            raise ApiError(resource.path(namespace), 503, "ServiceUnavailable", "it is down")
        yield [], "1"


async def asked(source: EvidenceSource, *namespaces: str) -> float:
    """A stuck job asks in each of these namespaces at once. Returns the seconds until all have their answers."""
    began = virtual_time.now()
    jobs = [observed(raw_job(namespace=one), raw_ray_job(namespace=one)) for one in namespaces]
    await asyncio.gather(*(source.fetch(job, Want.EVENTS) for job in jobs), return_exceptions=True)
    return virtual_time.now() - began


def test_namespaces_do_not_wait_for_each_other_and_four_are_read_at_a_time() -> None:
    """Before, a hundred namespaces with a stuck job kept all workers waiting for minutes, and new jobs too."""

    async def story() -> None:
        server = SlowApiServer()
        source = EvidenceSource(server, clock=virtual_time.now)
        assert await asked(source, "a", "b") == pytest.approx(1)
        many = [f"team-{number}" for number in range(100)]
        assert await asked(source, *many) == pytest.approx(25)
        assert server.most == 4
        assert set(server.listed) == {"a", "b", *many} and set(server.listed.values()) == {1}

    virtual_time.run(story())


def test_the_jobs_of_a_namespace_share_one_listing_for_five_seconds() -> None:
    async def story() -> None:
        server = SlowApiServer()
        source = EvidenceSource(server, clock=virtual_time.now)
        assert await asked(source, *["a"] * 30) == pytest.approx(1)
        await asyncio.sleep(4.5)
        assert await asked(source, "a") == 0
        assert server.listed == {"a": 1}
        await asyncio.sleep(1)
        await asked(source, "a", "a")
        assert server.listed == {"a": 2}

    virtual_time.run(story())


def test_a_namespace_leaves_no_lock_behind_even_if_it_cannot_be_read() -> None:
    async def story() -> None:
        server = SlowApiServer()
        server.down = {"b"}
        source = EvidenceSource(server, clock=virtual_time.now)
        await asked(source, "a", "b", "c")
        await asyncio.sleep(0)  # The loop still has the error.
        gc.collect()
        assert len(source._one_at_a_time) == 0
        server.down = set()
        await asked(source, "b")
        assert server.listed == {"a": 1, "b": 2, "c": 1}

    virtual_time.run(story())
