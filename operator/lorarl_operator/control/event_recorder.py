"""Writes Events about jobs, sweeps and schedules in the background, one at a time, so that they never delay a job.

A lost Event is only logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from datetime import datetime
from typing import Any

from lorarl_operator import logs
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.models import MANAGER, Job
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.sweep_models import Sweep
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError, NotLeaderError
from lorarl_operator.kube.resources import EVENTS, LORARLJOBS, LORARLSCHEDULES, LORARLSWEEPS

log = logging.getLogger(__name__)
_LONGEST_BACKLOG = 20_000
_REMEMBERED = 4_000
_LONGEST_MESSAGE = 1024  # The API server's limit.


_RESOURCES = {Job: LORARLJOBS, Sweep: LORARLSWEEPS, Schedule: LORARLSCHEDULES}
type Subject = Job | Sweep | Schedule


class EventRecorder:
    """A queue of Events and the task that writes them. A repeated Event only raises the count of the first one."""

    def __init__(self, client: Client, instance: str) -> None:
        """`instance` is the name of this replica."""
        self._client = client
        self._instance = instance
        self._backlog: asyncio.Queue[tuple[Subject, Event, datetime]] = asyncio.Queue(_LONGEST_BACKLOG)
        self._counts: OrderedDict[str, int] = OrderedDict()

    def record(self, job: Subject, event: Event) -> None:
        """Queue an Event and log it."""
        log.info("%s/%s: %s: %s", job.namespace, job.name, event.reason, event.message)
        try:
            self._backlog.put_nowait((job, event, self._client.now()))
        except asyncio.QueueFull:
            log.warning("an Event was dropped: %d others are waiting", _LONGEST_BACKLOG)

    async def run(self) -> None:
        """Write the queued Events forever."""
        while True:
            job, event, seen = await self._backlog.get()
            try:
                await self._write(job, event, seen)
            except (ApiError, NotLeaderError) as error:
                with logs.about(namespace=job.namespace, job=job.name, uid=job.uid):
                    log.warning("the Event %s of %s/%s was lost: %s", event.reason, job.namespace, job.name, error)

    async def _write(self, job: Subject, event: Event, seen: datetime) -> None:
        digest = hashlib.sha256("\n".join((job.uid, event.type, event.reason, event.message)).encode()).hexdigest()
        name = f"{job.name}.{digest[:16]}"
        time = seen.strftime("%Y-%m-%dT%H:%M:%SZ")
        count = self._counts.pop(name, 0) + 1
        if count > 1 and await self._patched(job.namespace, name, {"count": count, "lastTimestamp": time}):
            self._remember(name, count)
            return
        count = 1
        try:
            await self._client.create(_manifest(job, event, name, time, self._instance))
        except ApiError as error:
            if not error.already_exists:
                raise
            count = await self._continued(job.namespace, name, time)
        self._remember(name, count)

    async def _continued(self, namespace: str, name: str, time: str) -> int:
        """Raise an Event that was there already, whose count only the API server knows. Returns the new count."""
        # Only the answer to a patch has it: the operator may not get Events.
        known = await self._patched(namespace, name, {"lastTimestamp": time})
        if known is None or known.get("firstTimestamp") == time:
            return 1  # This very Event was created, and the answer was lost.
        count = int(known.get("count") or 1) + 1
        await self._patched(namespace, name, {"count": count})
        return count

    async def _patched(self, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any] | None:
        """The Event after a patch; None if it is gone."""
        try:
            return await self._client.merge(EVENTS, namespace, name, patch)
        except ApiError as error:
            if error.not_found:  # The API server keeps Events for an hour.
                return None
            raise

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)


def _manifest(job: Subject, event: Event, name: str, time: str, instance: str) -> dict[str, Any]:
    about = _RESOURCES[type(job)]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"namespace": job.namespace, "name": name},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
            "resourceVersion": job.resource_version,
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message[:_LONGEST_MESSAGE],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": MANAGER, "host": instance},
        "reportingComponent": MANAGER,
        "reportingInstance": instance,
    }
