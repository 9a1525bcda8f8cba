"""Runs schedules: looks at their times and jobs, decides, and carries that out.

It has its own queue and its own workers, as the sweeper has. A schedule waits in the queue for its next time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.made_jobs import MadeJobs
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.worker import Worker
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.blockers import exceeds_quota
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.schedule import decide_schedule
from lorarl_operator.decide.schedule_models import Remove, Schedule, ScheduleDecision, Start
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.resources import LORARLSCHEDULES

WORKERS = 4
CONFLICT_SECONDS = 0.2


class Scheduler:
    """A queue of schedules, and workers that start their jobs."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        jobs: WorkQueue[Key],
        recorder: EventRecorder,
        *,
        served: ServedSchema,
        has_synced: Callable[[str], bool] = lambda _: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` is fenced by the lease, and has the time. `jobs` is the controller's queue.

        `served`: shared with the other queues. `has_synced`: whether all jobs of a namespace are known. `clock` is
        monotonic, in seconds.
        """
        self._client, self._cache, self._recorder = client, cache, recorder
        self._made = MadeJobs(client, cache, jobs, LORARLSCHEDULES, Scheduling)
        self._served = served
        self._has_synced = has_synced
        self._queue: WorkQueue[Key] = WorkQueue(clock)
        self._uids: dict[Key, str] = {}
        self._not_made: dict[str, NotMade] = {}
        """By the uid of a schedule: why its newest job was refused."""

    def notice(self, key: Key, job: Job | None) -> None:
        """Look soon at the schedule of this name, and at that of a job. A job that is gone may be of any one."""
        if self._cache.schedule(key) is not None or key in self._uids:
            self._queue.add(key)
        for one in self._made.makers_of(key, job):
            self._queue.add(one)

    async def work(self) -> None:
        """Run schedules forever. One that fails does not stop the others."""
        await Worker(self._queue, self._run, "schedule", "the schedule", CONFLICT_SECONDS, self._tell).work()

    def _tell(self, key: Key, event: Event) -> None:
        if (found := self._cache.schedule(key)) is not None:
            self._recorder.record(found, event)

    async def _run(self, key: Key) -> None:
        schedule = self._cache.schedule(key)
        if schedule is None or schedule.deleted_at is not None:
            uid = self._uids.pop(key, "")
            self._made.forget(uid)
            self._not_made.pop(uid, None)
            self._queue.remove(key)
            return
        if not self._has_synced(schedule.namespace):  # A time whose job is unknown would seem to have none.
            self._queue.add_after(key, 1.0)
            return
        self._uids[key] = schedule.uid
        schedule = await self._served.readable(schedule)
        for one in schedule.read_status().get("active") or ():
            await self._made.known(schedule.namespace, str(one.get("name")))
        jobs, now = self._cache.made_by(schedule), self._client.now()
        decision = decide_schedule(schedule, jobs, self._not_made.get(schedule.uid), now)
        if (refused := await self._refused_in_place(schedule, decision)) is not None:
            self._not_made[schedule.uid] = refused
            decision = decide_schedule(schedule, jobs, refused, now)
        if decision.recheck_seconds is not None:
            self._queue.add_after(key, decision.recheck_seconds)
        await self._carry_out(key, schedule, decision)

    async def _refused_in_place(self, schedule: Schedule, decision: ScheduleDecision) -> NotMade | None:
        """Why a job cannot take the place of others for which it would be deleted; None if it can.

        A quota is no reason: their deletion may make room.
        """
        start = next((one for one in decision.actions if isinstance(one, Start)), None)
        if start is None or len(decision.actions) == 1:
            return None
        refused = await self._made.tried(schedule, start.manifest)
        return None if refused is None or exceeds_quota(refused.message) else refused

    async def _carry_out(self, key: Key, schedule: Schedule, decision: ScheduleDecision) -> None:
        if decision.status is not None:
            await self._made.write_status(schedule, decision.status)
        for event in decision.events:
            self._recorder.record(schedule, event)
        for action in decision.actions:
            match action:
                case Remove(job=job):
                    await self._made.delete(job)
                case Start(manifest=manifest):
                    refused = await self._made.create(schedule, manifest)
                    self._not_made.pop(schedule.uid, None)
                    if refused is not None:
                        self._not_made[schedule.uid] = refused
        if decision.status is not None or decision.actions:
            self._queue.add(key)
