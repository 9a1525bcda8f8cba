"""A job that the operator cannot handle says so, and delays no other one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.controller import Controller
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.memories import Memories
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.models import FINALIZER, Job, Refusal
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, Resource
from unit.operator.observed_world import SETTINGS, START, raw_job
from unit.operator.test_event_recorder import ApiServer

KEYS = ("team", "demo"), ("team", "other")


class Clocked(ApiServer):
    def now(self):
        return START


class Refuses(Clocked):
    """An API server that refuses each change of a LoRARLJob."""

    async def merge(self, resource: Resource, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        if resource == LORARLJOBS:
            raise ApiError("PATCH lorarljobs demo", 403, "Forbidden", "a webhook says no")
        return await super().merge(resource, namespace, name, patch)

    async def apply(self, manifest: dict[str, Any], *, subresource: str = "", manager: str = "") -> dict[str, Any]:
        raise ApiError("PATCH lorarljobs demo", 403, "Forbidden", "a webhook says no")


GOES = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("about", [{}, GOES], ids=["its status", "its finalizer"])
def test_a_change_of_the_job_that_is_refused_is_an_event(about: dict[str, Any]):
    server, cache, queue = Refuses(), Cache(), WorkQueue[Key]()
    recorder = EventRecorder(server, "replica")
    job = raw_job({"suspend": True})
    job["metadata"] |= about
    cache.put(LORARLJOBS, job)
    queue.add(("team", "demo"))

    async def work() -> None:
        controller = Controller(server, cache, queue, recorder, SETTINGS, served=ServedSchema(server))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in (controller.work(), recorder.run())]
            while not server.events:
                await asyncio.sleep(0)
            for task in running:
                task.cancel()

    asyncio.run(work())
    [event] = server.events.values()
    assert event["reason"] == News.CHANGE_REFUSED and "a webhook says no" in event["message"]


def test_nothing_is_remembered_of_an_earlier_job_of_the_same_name():
    memories, key = Memories(), ("team", "demo")
    refusal = Refusal("RayJob", "demo-1", 403, "Forbidden", "no", START, 1)
    memories.of(key, "earlier").refusals["RayJob", "demo-1"] = refusal
    assert memories.get(key, "later") is None and not memories.of(key, "later").refusals
    assert memories.get(key, "earlier") is None
    memories.forget(key)
    assert memories.get(key, "later") is None


def test_a_fault_of_the_operator_is_an_event_of_the_job():
    server, cache, queue, reached = Clocked(), Cache(), WorkQueue[Key](), []
    recorder = EventRecorder(server, "replica")
    for namespace, name in KEYS:
        cache.put(LORARLJOBS, raw_job(namespace=namespace, name=name, uid=name))
        queue.add((namespace, name))

    def noticed(key: Key, _: Job) -> None:
        reached.append(key)
        raise RuntimeError("duplicate key in map")

    async def work() -> None:
        controller = Controller(server, cache, queue, recorder, SETTINGS, served=ServedSchema(server), noticed=noticed)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in (controller.work(), recorder.run())]
            while len(server.events) < len(KEYS):
                await asyncio.sleep(0)
            for task in running:
                task.cancel()

    asyncio.run(work())
    assert set(reached) == set(KEYS)
    assert {event["reason"] for event in server.events.values()} == {News.OPERATOR_FAULT}
    assert {event["involvedObject"]["name"] for event in server.events.values()} == {"demo", "other"}
    assert all("RuntimeError: duplicate key in map. It tries again" in one["message"] for one in server.events.values())
