"""One replica: it waits for the lease, leads while it holds it, and stops when it loses it or gets a signal."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast

import kopf

from lorarl_operator import metrics
from lorarl_operator.control import handlers
from lorarl_operator.control.cache import WATCHED, Cache, Key
from lorarl_operator.control.controller import WORKERS, Controller
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.publisher import WORKERS as PUBLISHING_WORKERS
from lorarl_operator.control.publisher import Publisher
from lorarl_operator.control.resync import Resyncer
from lorarl_operator.control.scheduler import WORKERS as SCHEDULING_WORKERS
from lorarl_operator.control.scheduler import Scheduler
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.sweeper import WORKERS as SWEEPING_WORKERS
from lorarl_operator.control.sweeper import Sweeper
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.settings import Settings
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.lease import Lease, LeaseLostError
from lorarl_operator.kube.resources import LORARLJOBS, LORARLSCHEDULES, LORARLSWEEPS, NAMESPACES, RAYJOBS, Resource

log = logging.getLogger(__name__)
_MISSING_SECONDS = 10.0
_OPTIONAL = (LORARLSWEEPS, LORARLSCHEDULES)
"""Kinds that a cluster may lack whose CRDs are older than the operator."""
_NO_KIND_SECONDS = 60.0
"""How often a cluster that lacks one of them is asked again."""
_WATCHES_SECONDS = 60.0
"""How long watches may take to start, and to start again."""
_WATCH_AGAIN_SECONDS = 2.0
_LAST_WRITES_SECONDS = 5.0
_HINTS = {
    LORARLJOBS: "Install or upgrade the chart lorarl, or apply crds/lorarl.io_lorarljobs.yaml.",
    RAYJOBS: "Install KubeRay: helm install kuberay-operator kuberay-operator "
    "--repo https://ray-project.github.io/kuberay-helm --version 1.6.2.",
}


@dataclass
class LeaderElector:
    """One replica with its parts and its health. `namespaces` are those served; empty for all."""

    client: Client
    lease: Lease
    identity: str
    namespaces: Sequence[str]
    settings: Settings
    cache: Cache = field(default_factory=Cache)
    _missing: str | None = "the operator has not asked the API server yet which kinds it has"
    _watches_fine_at: float | None = None
    _resyncer: Resyncer | None = None
    _watched: dict[Resource, str] = field(default_factory=lambda: dict(WATCHED))

    def alive(self) -> str | None:
        """Why the process should be restarted; None if it is healthy."""
        if self._watches_fine_at is None:
            return None
        running, wanted = self._watches(), len(self._watched) * max(1, len(self.namespaces))
        now = asyncio.get_running_loop().time()
        if running >= wanted:
            self._watches_fine_at = now
        elif now - self._watches_fine_at > _WATCHES_SECONDS:
            return f"only {running} of {wanted} watches are running"
        return None

    def ready(self) -> str | None:
        """What keeps this replica from leading or from standing by; None if nothing does."""
        return self._missing or self.alive() or (self._resyncer.why_not_synced() if self._resyncer else None)

    async def run(self) -> int:
        """Stand by, lead, stop.

        Returns:
            The exit status: 0 after a signal, 1 after the loss of the lease or of a background task.
        """
        stop = asyncio.Event()
        _on_signals(stop.set)
        try:
            if not await _unless(stop, self._kinds_are_there()) or not await _unless(stop, self.lease.acquire()):
                return 0
            metrics.LEADER.set(1)
            return await self._lead(stop)
        finally:
            metrics.LEADER.set(0)
            await self.lease.release()

    async def _lead(self, stop: asyncio.Event) -> int:
        queue: WorkQueue[Key] = WorkQueue()
        metrics.QUEUE_DEPTH.set_function(lambda: len(queue))
        metrics.WATCHES.set_function(self._watches)
        fenced = self.client.fenced(self.lease.seconds_to_write)
        self._resyncer = resyncer = Resyncer(self.client, self.cache, queue, self.namespaces or [None], self._watched)
        recorder = EventRecorder(fenced, self.identity)
        served, known = ServedSchema(fenced), resyncer.has_synced
        publisher = Publisher(fenced, self.cache, recorder, served=served)
        sweeper = Sweeper(fenced, self.cache, queue, recorder, served=served, has_synced=known)
        scheduler = Scheduler(fenced, self.cache, queue, recorder, served=served, has_synced=known)

        def noticed(key: Key, job: Job | None) -> None:
            publisher.notice(key, job)
            sweeper.notice(key, job)
            scheduler.notice(key, job)

        controller = Controller(fenced, self.cache, queue, recorder, self.settings, served=served, noticed=noticed)
        background = [_task(self.lease.hold(), "lease"), _task(recorder.run(), "events"), _task(stop.wait(), "stop")]
        workers: list[asyncio.Task[Any]] = []
        try:
            synced = _task(resyncer.sync(), "first listing")
            await asyncio.wait([synced, *background], return_when=asyncio.FIRST_COMPLETED)
            if not synced.done():
                synced.cancel()
                return _exit_status(background, stop)
            synced.result()
            log.info("%d jobs found", len(self.cache))
            workers = [_task(controller.work(), f"worker {number}") for number in range(WORKERS)]
            workers += [_task(publisher.work(), f"publisher {number}") for number in range(PUBLISHING_WORKERS)]
            workers += [_task(sweeper.work(), f"sweeper {number}") for number in range(SWEEPING_WORKERS)]
            workers += [_task(scheduler.work(), f"scheduler {number}") for number in range(SCHEDULING_WORKERS)]
            background += [_task(resyncer.run(), "resync"), _task(resyncer.retry(), "listing again")]
            if absent := [one for one in _OPTIONAL if one not in self._watched]:
                background.append(_task(self._kinds_come(absent, stop), "kinds"))
            # Last: when kopf ends, it cancels all tasks that were started after it, as if they were its own.
            background.append(_task(self._watch(queue, resyncer, stop), "watches"))
            await asyncio.wait([*background, *workers], return_when=asyncio.FIRST_COMPLETED)
            return _exit_status([*background, *workers], stop)
        finally:
            await _finish(workers, background)

    async def _watch(self, queue: WorkQueue[Key], resyncer: Resyncer, stop: asyncio.Event) -> None:
        """Run the watches, and restart them when they fail. The cache stays, and a resync corrects what they missed."""
        self._watches_fine_at = asyncio.get_running_loop().time()
        while True:
            try:
                await self._watch_once(queue, resyncer, stop)
            except Exception:
                metrics.ERRORS.labels("watch").inc()
                log.exception("the watches failed and will be restarted")
            if stop.is_set():
                return
            await asyncio.sleep(_WATCH_AGAIN_SECONDS)
            resyncer.request()

    async def _watch_once(self, queue: WorkQueue[Key], resyncer: Resyncer, stop: asyncio.Event) -> None:
        started = asyncio.Event()

        async def signals_are_ours_again() -> None:
            await started.wait()
            _on_signals(stop.set)  # kopf installs its own handlers when it starts.

        again = _task(signals_are_ours_again(), "signals")
        try:
            await kopf.operator(
                registry=handlers.watch(self.cache, queue, resyncer, self.client.configuration, self._watched),
                settings=handlers.settings(),
                clusterwide=not self.namespaces,
                namespaces=self.namespaces,
                ready_flag=started,
                # By default kopf asks for the user's name, which the user of a pod does not have.
                identity=cast("Any", self.identity),
            )
        finally:
            again.cancel()

    async def _kinds_are_there(self) -> None:
        """Wait until the API server has the required kinds. Until then report what is missing and how to install it."""
        absent: list[Resource] = []
        while True:
            try:
                uid = await self._cluster_uid()
                self._missing = _text_of([one for one in _HINTS if not await self.client.serves(one)])
                absent = [one for one in _OPTIONAL if not await self.client.serves(one)]
            except ApiError as error:
                self._missing = f"the API server does not report which kinds it has: {error}"
            if self._missing is None:
                for one in absent:
                    log.warning("the API server has no %s. Upgrade the chart's CRDs.", one.kind)
                    self._watched.pop(one, None)
                self.settings = replace(self.settings, cluster_uid=uid)
                return
            log.error("%s", self._missing)
            await asyncio.sleep(_MISSING_SECONDS)

    async def _kinds_come(self, absent: list[Resource], stop: asyncio.Event) -> None:
        """Wait until the API server has one of these, and then stop: the replica that starts in turn watches it."""
        while not stop.is_set():
            await asyncio.sleep(_NO_KIND_SECONDS)
            try:
                come = [one.kind for one in absent if await self.client.serves(one)]
            except ApiError:
                continue  # What fails for longer, the watches say.
            if come:
                log.info("the API server has %ss now", "s and ".join(come))
                stop.set()

    async def _cluster_uid(self) -> str:
        """The uid of namespace kube-system; empty if this account may not read it, as with Roles alone."""
        try:
            found = await self.client.get(NAMESPACES, None, "kube-system")
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            log.info("jobs tell clusters apart by their certificates, because: %s", error)
            return ""
        return str(found["metadata"]["uid"]) if found else ""

    @staticmethod
    def _watches() -> int:
        return sum(task.get_name().startswith("watcher for ") for task in asyncio.all_tasks())


def _text_of(missing: list[Resource]) -> str | None:
    if not missing:
        return None
    return " ".join(f"the API server has no {one.kind} ({one.api_version}). {_HINTS[one]}" for one in missing)


def _task(coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine, name=name)


async def _unless(stop: asyncio.Event, coroutine: Coroutine[Any, Any, None]) -> bool:
    """Run a coroutine until it is done or `stop` is set. Return whether it is done."""
    work, stopping = _task(coroutine, "start"), _task(stop.wait(), "stop")
    done, _ = await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
    await _cancel([work, stopping])
    if work in done:
        work.result()
    return work in done


def _exit_status(tasks: list[asyncio.Task[Any]], stop: asyncio.Event) -> int:
    """The exit status, from the first task that ended. They end only after a failure or a signal."""
    for task in tasks:
        if not task.done() or task.cancelled() or (error := task.exception()) is None:
            continue
        if isinstance(error, LeaseLostError):
            log.error("%s", error)
        else:
            log.error("%s failed", task.get_name(), exc_info=error)
        return 1
    if stop.is_set():
        log.info("stopping after a signal")
        return 0
    log.error("a task that should run forever has ended: %s", [task.get_name() for task in tasks if task.done()])
    return 1


async def _finish(workers: list[asyncio.Task[Any]], background: list[asyncio.Task[Any]]) -> None:
    """Stop all writers before the lease is released. The next leader finds or repeats a write that was cut off."""
    await _cancel(workers)
    await _cancel(background)


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_LAST_WRITES_SECONDS)


def _on_signals(react: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, react)
