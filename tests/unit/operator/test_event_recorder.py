"""How often an Event has been seen, with an API server that keeps Events by name."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.decide.decision import Event
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import Resource
from unit.operator.observed_world import observed, raw_job

JOB = observed(raw_job()).job
EVENT = Event("Warning", "PodsWait", "no node has room")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class ApiServer(Client):
    """Creates Events and patches them. It may lose the answer to a creation, which is then sent again."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.loses_answer = False

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        self.requests.append("create")
        name = manifest["metadata"]["name"]
        if name in self.events:
            raise ApiError("POST", 409, "AlreadyExists", "it exists")
        self.events[name] = manifest
        return await self.create(manifest) if self.loses_answer else manifest

    async def merge(self, resource: Resource, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        self.requests.append("patch")
        if name not in self.events:
            raise ApiError("PATCH", 404, "NotFound", "it is gone")
        self.events[name] |= patch
        return self.events[name]

    def restart(self) -> EventRecorder:
        """A new operator."""
        return EventRecorder(self, "replica")

    @property
    def seen(self) -> tuple[int, str]:
        """The count and the last time of the only Event."""
        (event,) = self.events.values()
        return event["count"], event["lastTimestamp"]


async def repeat(recorder: EventRecorder, *minutes: int) -> None:
    """The Event is recorded in these minutes."""
    for minute in minutes:
        await recorder._write(JOB, EVENT, BEGAN + timedelta(minutes=minute))


def test_a_repeated_event_is_counted_across_restarts_of_the_operator() -> None:
    """Before, the second repetition after a restart set the count to 2."""

    async def story() -> None:
        server = ApiServer()
        await repeat(server.restart(), *range(37))
        assert server.seen == (37, "2026-01-01T00:36:00Z")
        recorder = server.restart()
        await repeat(recorder, 40)
        assert server.seen == (38, "2026-01-01T00:40:00Z")
        server.requests.clear()
        await repeat(recorder, 41, 42)
        assert server.seen == (40, "2026-01-01T00:42:00Z")
        assert server.requests == ["patch", "patch"], "the count is asked for once"

    asyncio.run(story())


def test_an_event_that_has_expired_begins_again() -> None:
    async def story() -> None:
        server = ApiServer()
        recorder = server.restart()
        await repeat(recorder, 0, 1)
        server.events.clear()
        await repeat(recorder, 90)
        assert server.seen == (1, "2026-01-01T01:30:00Z")
        await repeat(recorder, 91)
        assert server.seen == (2, "2026-01-01T01:31:00Z")

    asyncio.run(story())


def test_an_event_whose_first_answer_was_lost_is_counted_once() -> None:
    async def story() -> None:
        server = ApiServer()
        server.loses_answer = True
        recorder = server.restart()
        await repeat(recorder, 0)
        assert server.seen == (1, "2026-01-01T00:00:00Z")
        await repeat(recorder, 1)
        assert server.seen == (2, "2026-01-01T00:01:00Z")

    asyncio.run(story())
