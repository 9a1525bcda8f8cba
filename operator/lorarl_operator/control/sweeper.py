"""Runs sweeps: looks at their trials, decides, and carries that out.

It has its own queue and its own workers, as the publisher has. It remembers nothing that the cluster does not have,
except why the API server refused the job of a trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lorarl_api.faults import ManifestError
from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.made_jobs import MadeJobs
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.worker import Worker
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.sweep import decide_sweep
from lorarl_operator.decide.sweep_models import (
    DeleteSweep,
    Make,
    Suspend,
    Sweep,
    SweepAction,
    SweepDecision,
    Try,
    stored_trials,
)
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.decide.sweep_trials import ENDED
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, LORARLSWEEPS

WORKERS = 4
CONFLICT_SECONDS = 0.2
NUMBERS_SECONDS = 10.0
"""How often newer numbers of trials alone are written."""


_FREE = "Its job is no longer refused. It begins when a place is free."


@dataclass(slots=True)
class _Memory:
    """What is remembered about a sweep."""

    uid: str
    not_made: dict[str, NotMade] = field(default_factory=dict)
    written_at: float = float("-inf")


class Sweeper:
    """A queue of sweeps, and workers that bring their trials to what is wanted."""

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
        """`client` is fenced by the lease. `jobs` is the controller's queue, which hears of what is written here.

        `served`: shared with the other queues. `has_synced`: whether all jobs of a namespace are known. `clock` is
        monotonic, in seconds.
        """
        self._client, self._cache, self._recorder, self._clock = client, cache, recorder, clock
        self._made = MadeJobs(client, cache, jobs, LORARLSWEEPS, Sweeping)
        self._served = served
        self._has_synced = has_synced
        self._queue: WorkQueue[Key] = WorkQueue(clock)
        self._memories: dict[Key, _Memory] = {}

    def notice(self, key: Key, job: Job | None) -> None:
        """Look soon at the sweep of this name, and at that of a job. A job that is gone may be of any one."""
        if self._cache.sweep(key) is not None or key in self._memories:
            self._queue.add(key)
        for one in self._made.makers_of(key, job):
            self._queue.add(one)

    async def work(self) -> None:
        """Run sweeps forever. One that fails does not stop the others."""
        await Worker(self._queue, self._sweep, "sweep", "the sweep", CONFLICT_SECONDS, self._tell).work()

    def _tell(self, key: Key, event: Event) -> None:
        if (found := self._cache.sweep(key)) is not None:
            self._recorder.record(found, event)

    async def _sweep(self, key: Key) -> None:
        sweep = self._cache.sweep(key)
        if sweep is None or sweep.deleted_at is not None:
            if (memory := self._memories.pop(key, None)) is not None:
                self._made.forget(memory.uid)
            self._queue.remove(key)
            return
        if not self._has_synced(sweep.namespace):  # An unknown job would seem to be deleted.
            self._queue.add_after(key, 1.0)
            return
        sweep, memory = await self._served.readable(sweep), self._memory(key, sweep)
        decision = decide_sweep(sweep, await self._jobs(sweep), memory.not_made, self._client.now())
        if decision.recheck_seconds is not None:
            self._queue.add_after(key, decision.recheck_seconds)
        await self._carry_out(key, sweep, memory, decision)

    def _memory(self, key: Key, sweep: Sweep) -> _Memory:
        """What is remembered about a sweep; nothing of an earlier one of its name, whose trials were other ones."""
        memory = self._memories.get(key)
        if memory is None or memory.uid != sweep.uid:
            if memory is not None:
                self._made.forget(memory.uid)
            memory = self._memories[key] = _Memory(sweep.uid)
        return memory

    async def _jobs(self, sweep: Sweep) -> dict[str, Job]:
        """The jobs of the trials. One that the cache lacks is asked for before it counts as deleted."""
        try:
            _, trials = sweep.checked()
        except ManifestError:
            return {}
        stored, found = stored_trials(sweep.read_status()), {}
        for trial in trials:
            key = (sweep.namespace, trial.name)
            before = stored.get(trial.name, {})
            if before.get("uid") and before.get("phase") not in ENDED:
                await self._made.known(*key)
            job = self._cache.job(key)
            if job is not None and job.maker is not None and job.maker.uid == sweep.uid:
                found[trial.name] = job
        return found

    async def _carry_out(self, key: Key, sweep: Sweep, memory: _Memory, decision: SweepDecision) -> None:
        wait = memory.written_at + NUMBERS_SECONDS - self._clock()
        if decision.status is not None and (decision.pressing or wait <= 0):
            await self._made.write_status(sweep, decision.status)
            memory.written_at = self._clock()
            self._queue.add(key)
        elif decision.status is not None:
            self._queue.add_after(key, wait)
        for event in decision.events:
            self._recorder.record(sweep, event)
        failed: ApiError | None = None
        for action in decision.actions:
            try:
                await self._act(sweep, memory, action)
            except ApiError as error:  # It stops no other trial.
                failed = failed or error
        if failed is not None:
            raise failed
        if decision.actions:  # Not at once: a webhook of others may undo each of them.
            self._queue.add_after(key, CONFLICT_SECONDS)

    async def _act(self, sweep: Sweep, memory: _Memory, action: SweepAction) -> None:
        match action:
            case Make():
                memory.not_made.pop(action.trial, None)
                if (refused := await self._made.create(sweep, action.manifest)) is not None:
                    memory.not_made[action.trial] = refused
            case Try(trial=trial, manifest=manifest):
                refused = await self._made.tried(sweep, manifest)
                memory.not_made[trial] = refused or replace(memory.not_made[trial], message=_FREE, passes=True)
            case Suspend(trial=trial, uid=uid, suspend=suspend):
                patch = {"metadata": {"uid": uid}, "spec": {"suspend": suspend}}
                self._made.put(await self._client.merge(LORARLJOBS, sweep.namespace, trial, patch))
            case DeleteSweep():
                await self._client.delete(LORARLSWEEPS, sweep.namespace, sweep.name, sweep.uid)
