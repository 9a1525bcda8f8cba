"""A job that the operator cannot handle says so, and delays no other one."""

from __future__ import annotations

import asyncio

from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.controller import Controller
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.kube.resources import LORARLJOBS
from unit.operator.observed_world import SETTINGS, START, raw_job
from unit.operator.test_event_recorder import ApiServer

KEYS = ("team", "demo"), ("team", "other")


class Clocked(ApiServer):
    def now(self):
        return START


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
        controller = Controller(server, cache, queue, recorder, SETTINGS, noticed=noticed)
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
