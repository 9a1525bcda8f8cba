"""Looks at one job after the other: what is there, what is decided, and carrying that out.

Nothing is remembered between two looks that the cluster does not hold, but for what explains a stuck job; so an operator that is
killed at any moment goes on from what it finds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from lorarl_operator import metrics
from lorarl_operator.cache import Cache, Key
from lorarl_operator.decide import decide
from lorarl_operator.decision import Action, AddFinalizer, Apply, Create, Decision, Delete, DeleteJob, RemoveFinalizer
from lorarl_operator.event_recorder import EventRecorder
from lorarl_operator.evidence import EvidenceSource
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError, NotLeaderError
from lorarl_operator.kube.resources import JOBS, LORARLJOBS, RAYJOBS, Resource, resource_of
from lorarl_operator.models import FINALIZER, Evidence, Job, Observed, Refusal
from lorarl_operator.settings import Settings
from lorarl_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)

WORKERS = 32
"""They mostly wait for the API server."""
EVIDENCE_SECONDS = 10.0
"""How often evidence about a stuck job is fetched anew."""
FOREIGN_SECONDS = 10.0
"""How often an object that holds a name we need, and that no watch reports on, is looked at."""
CONFLICT_SECONDS = 0.1


class _MovedError(Exception):
    """The world has moved since it was observed: look again."""


class _RefusedError(Exception):
    """The API server refuses an action: look again, so that the status says why; not at once for ever."""


@dataclass(slots=True)
class _Memory:
    """What is held in memory about a job, while it is needed."""

    refusal: Refusal | None = None
    evidence: Evidence | None = None
    evidence_at: float = float("-inf")
    foreign_at: float = float("-inf")
    written: tuple[int, str] | None = None
    """The status written last, as its hash, and the job's version after it."""


class Controller:
    """The reconciler: a queue of jobs, and workers that look at them."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        queue: WorkQueue[Key],
        recorder: EventRecorder,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` is fenced by the lease; `clock` is monotonic, in seconds."""
        self._client, self._cache, self._queue, self._recorder = client, cache, queue, recorder
        self._settings = settings
        self._evidence = EvidenceSource(client, clock)
        self._clock = clock
        self._memories: dict[Key, _Memory] = {}

    async def work(self) -> None:
        """Look at jobs for ever. Whatever one job does, the others are looked at."""
        while True:
            key = await self._queue.get()
            started = self._clock()
            try:
                await self._look(key)
            except _MovedError:
                self._queue.add_after(key, CONFLICT_SECONDS)
            except _RefusedError:
                self._queue.failed(key)
            except ApiError as error:
                self._failed(key, f"api-{error.status or 'timeout'}", error, error.retry_after or 0.0)
            except asyncio.CancelledError as error:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                # Not this worker was cancelled but a request of its: kopf's end does that to all tasks that began after it.
                self._failed(key, "cancelled", error)
            except NotLeaderError as error:
                log.warning("%s/%s: %s", *key, error)
                self._queue.failed(key)
            except Exception as error:
                log.exception("%s/%s could not be handled", *key, extra={"job": "/".join(key)})
                self._failed(key, type(error).__name__, error)
            else:
                self._queue.succeeded(key)
            finally:
                self._queue.done(key)
                metrics.RECONCILE_SECONDS.observe(self._clock() - started)

    def _failed(self, key: Key, cause: str, error: BaseException, at_least: float = 0.0) -> None:
        metrics.ERRORS.labels(cause).inc()
        delay = self._queue.failed(key, at_least)
        log.warning("%s/%s: again in %.1f s: %s", *key, delay, error, extra={"job": "/".join(key)})

    async def _look(self, key: Key) -> None:
        await self._look_at_foreign(key)
        observed = self._cache.observe(key)
        if observed is None:
            self._memories.pop(key, None)
            self._queue.forget(key)
            return
        decision = await self._decide(key, observed)
        if decision.recheck_seconds is not None:
            self._queue.add_after(key, decision.recheck_seconds)
        if await self._knew_too_little(key, observed, decision):
            self._queue.add(key)
        elif decision.prepare or decision.status is not None or decision.actions:
            await self._carry_out(key, observed.job, decision)
            self._queue.add(key)  # What was done may be a step on the way.
        else:
            for event in decision.events:
                self._recorder.record(observed.job, event)

    async def _decide(self, key: Key, observed: Observed) -> Decision:
        memory = self._memories.get(key) or _Memory()
        if memory.refusal is not None or memory.evidence is not None:
            observed = replace(observed, refusal=memory.refusal, evidence=memory.evidence)
        decision = decide(observed, datetime.now(UTC), self._settings)
        if decision.wants_evidence is None:
            if memory.evidence is not None:
                memory.evidence = None
            return decision
        if self._clock() - memory.evidence_at < EVIDENCE_SECONDS:
            return decision
        self._memories[key] = memory
        memory.evidence_at = self._clock()
        try:
            memory.evidence = await self._evidence.fetch(observed, decision.wants_evidence)
        except ApiError as error:
            log.warning("%s/%s: why it is stuck could not be asked: %s", *key, error)
            return decision
        return decide(replace(observed, evidence=memory.evidence), datetime.now(UTC), self._settings)

    async def _knew_too_little(self, key: Key, observed: Observed, decision: Decision) -> bool:
        """Whether a RayJob that is to be deleted has moved on: read it anew, since its watch may be behind that of its pods.

        Else an attempt that has succeeded would be taken for one that lost its pods, as KubeRay lets its workers go at once. What was
        observed is compared, not what is known by now: while the answer is awaited, the watch may bring the same.
        """
        doomed = [action for action in decision.actions if isinstance(action, Delete) and action.kind == RAYJOBS.kind]
        for one in doomed:
            await self._refresh(RAYJOBS, key, one.name, one.uid)
        now = self._cache.observe(key)
        return bool(doomed) and (now is None or now.ray_jobs != observed.ray_jobs)

    async def _carry_out(self, key: Key, job: Job, decision: Decision) -> None:
        await self._act_all(key, job, decision.prepare)
        if decision.status is not None:
            await self._write_status(key, job, decision.status)
        for event in decision.events:
            self._recorder.record(job, event)
        await self._act_all(key, job, decision.actions)

    async def _act_all(self, key: Key, job: Job, actions: Sequence[Action]) -> None:
        """Act in order, but apply at once what can be: the API server takes up to 100 ms for each Role and RoleBinding."""
        for together in _waves(actions):
            if len(together) == 1:
                await self._act(key, job, together[0])
                continue
            outcomes = await asyncio.gather(*(self._act(key, job, one) for one in together), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _write_status(self, key: Key, job: Job, status: dict[str, Any]) -> None:
        digest = hash(json.dumps(status, sort_keys=True))
        memory = self._memories.setdefault(key, _Memory())
        if memory.written == (digest, job.resource_version):
            # The server stored something else than was sent (a field that its CRD does not have): writing it again would never end.
            raise ValueError(
                f"the status of {'/'.join(key)} is not stored as written; is the CRD that of this operator's version?"
            )
        manifest = {**_head(job), "status": status}
        manifest["metadata"]["resourceVersion"] = job.resource_version
        try:
            answer = await self._client.apply(manifest, subresource="status")
        except ApiError as error:
            if error.conflict or error.not_found:
                await self._refresh(LORARLJOBS, key, job.name, job.uid)
                raise _MovedError from error
            raise
        self._cache.put(LORARLJOBS, answer)
        memory.written = (digest, answer["metadata"]["resourceVersion"])

    async def _act(self, key: Key, job: Job, action: Action) -> None:
        kind, name = _target(job, action)
        try:
            await self._do(key, job, action)
        except ApiError as error:
            if error.conflict or error.not_found:
                await self._refresh(LORARLJOBS, key, job.name, job.uid)
                raise _MovedError from error
            if not error.refused and not error.already_exists:
                raise
            refusal = Refusal(kind, name, error.status, error.reason, error.message, datetime.now(UTC), job.generation)
            self._memories.setdefault(key, _Memory()).refusal = refusal
            log.warning("%s/%s: %s %s was refused: %s", *key, kind, name, error.message, extra={"job": "/".join(key)})
            raise _RefusedError from error
        memory = self._memories.get(key)
        if (
            memory is not None
            and memory.refusal is not None
            and (memory.refusal.kind, memory.refusal.name) == (kind, name)
        ):
            memory.refusal = None

    async def _do(self, key: Key, job: Job, action: Action) -> None:
        match action:
            case Apply(manifest, new):
                await self._apply(key, manifest, new)
            case Create(manifest):
                await self._create(key, job, manifest)
            case Delete(kind, name, uid):
                await self._delete(key, RAYJOBS if kind == RAYJOBS.kind else JOBS, name, uid)
            case DeleteJob():
                await self._delete(key, LORARLJOBS, job.name, job.uid)
            case AddFinalizer():
                await self._set_finalizers(job, (*job.finalizers, FINALIZER))
            case RemoveFinalizer():
                await self._set_finalizers(job, tuple(one for one in job.finalizers if one != FINALIZER))

    async def _create(self, key: Key, job: Job, manifest: dict[str, Any]) -> None:
        resource = resource_of(manifest)
        try:
            answer = await self._client.create(manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            found = await self._client.get(resource, key[0], manifest["metadata"]["name"])
            if found is None:
                raise _MovedError from error
            self._cache.put(resource, found, key)
            if _controller(found) == job.uid:
                return  # Our own request, whose answer was lost.
            raise
        self._cache.put(resource, answer, key)

    async def _apply(self, key: Key, manifest: dict[str, Any], new: bool) -> None:
        """Make an object that we own, or bring it up to date; one of somebody else is left as it is.

        Server-side apply alone would take a foreign object over, and it would go with the job.
        """
        meta = manifest["metadata"]
        if new:
            try:
                await self._client.create(manifest)
            except ApiError as error:
                if not error.already_exists:
                    raise
            else:
                return
        found = await self._client.get(resource_of(manifest), key[0], meta["name"])
        if found is None:
            await self._client.create(manifest)
        elif _controller(found) != _controller(manifest):
            raise ApiError(
                f"apply {manifest['kind']} {meta['name']}", 409, "AlreadyExists", "it belongs to something else"
            )
        elif not _has(found, manifest):
            await self._client.apply({**manifest, "metadata": {**meta, "uid": found["metadata"]["uid"]}})

    async def _delete(self, key: Key, resource: Resource, name: str, uid: str) -> None:
        try:
            left = await self._client.delete(resource, key[0], name, uid)
        except ApiError as error:
            if not error.conflict:
                raise
            # Taken for gone, it might live on beside the next attempt.
            await self._refresh(resource, key, name, uid)
            raise _MovedError from error
        if left is None:
            self._cache.remove(resource, key, name, uid)
        else:
            self._cache.put(resource, left, key)

    async def _set_finalizers(self, job: Job, finalizers: tuple[str, ...]) -> None:
        meta = {"resourceVersion": job.resource_version, "uid": job.uid, "finalizers": list(finalizers)}
        answer = await self._client.merge(LORARLJOBS, job.namespace, job.name, {"metadata": meta})
        if job.deleted_at and not answer["metadata"].get("finalizers"):
            # That was the end of it, and the answer has the version of before.
            self._cache.remove(LORARLJOBS, (job.namespace, job.name), job.name, job.uid)
        else:
            self._cache.put(LORARLJOBS, answer)

    async def _look_at_foreign(self, key: Key) -> None:
        if not (unwatched := self._cache.unwatched(key)):
            return
        memory = self._memories.setdefault(key, _Memory())
        if self._clock() - memory.foreign_at < FOREIGN_SECONDS:
            return
        memory.foreign_at = self._clock()
        for resource, child in unwatched:
            await self._refresh(resource, key, child.name, child.uid)

    async def _refresh(self, resource: Resource, key: Key, name: str, uid: str) -> bool:
        """Read an object into the cache; whether that brought news."""
        found = await self._client.get(resource, key[0], name)
        gone = (found is None or found["metadata"]["uid"] != uid) and self._cache.remove(resource, key, name, uid)
        return (found is not None and self._cache.put(resource, found, key) is not None) or gone


def _head(job: Job) -> dict[str, Any]:
    meta = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
    return {"apiVersion": LORARLJOBS.api_version, "kind": LORARLJOBS.kind, "metadata": meta}


def _waves(actions: Sequence[Action]) -> Iterator[Sequence[Action]]:
    """The actions in their order; neighbours that need nothing of each other together: applies, but for bindings, which need a Role."""
    wave: list[Action] = []
    for action in actions:
        if isinstance(action, Apply) and action.manifest["kind"] != "RoleBinding":
            wave.append(action)
            continue
        if wave:
            yield wave
        wave = []
        yield [action]
    if wave:
        yield wave


def _controller(manifest: dict[str, Any]) -> str:
    """Uid of the object that owns this one as its controller; empty where there is none."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def _has(found: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; what others added to mappings does no harm."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and _has(found[key], value) for key, value in wanted.items())
    return bool(found == wanted)


def _target(job: Job, action: Action) -> tuple[str, str]:
    match action:
        case Apply(manifest) | Create(manifest):
            return manifest["kind"], manifest["metadata"]["name"]
        case Delete(kind, name, _):
            return kind, name
    return LORARLJOBS.kind, job.name
