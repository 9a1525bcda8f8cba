"""Reconciles jobs: observes a job, decides, and carries the decision out.

Between two reconciliations it remembers only what the cluster has too, and what explains a stuck job. So an operator
may be killed at any moment, and its successor continues from what it finds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lorarl_operator import logs, metrics
from lorarl_operator.control import owned
from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.evidence import EvidenceSource
from lorarl_operator.control.job_templates import with_its_template
from lorarl_operator.control.memories import Memories, Memory
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import (
    Action,
    AddFinalizer,
    Apply,
    Create,
    Decision,
    Delete,
    DeleteJob,
    DeletePod,
    Event,
    RemoveFinalizer,
    Scale,
    operator_fault,
    refused_change,
    waves,
)
from lorarl_operator.decide.models import FINALIZER, Evidence, Job, Observed, Refusal
from lorarl_operator.decide.names import attempt_of
from lorarl_operator.decide.settings import Settings
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError, NotLeaderError
from lorarl_operator.kube.resources import LORARLJOBS, PODS, RAYCLUSTERS, RAYJOBS, Resource, resource_of, written

log = logging.getLogger(__name__)

WORKERS = 32
"""Number of workers. They mostly wait for the API server."""
EVIDENCE_SECONDS = 10.0
"""How often evidence about a stuck job is fetched again."""
FOREIGN_SECONDS = 10.0
"""How often an object is read that has a name we need, and that no watch reports."""
CONFLICT_SECONDS = 0.1


_UNTOLD = (Delete, DeletePod, DeleteJob, AddFinalizer, RemoveFinalizer)
"""Actions of whose refusal no decision tells."""


class _StaleError(Exception):
    """The cluster has changed since it was observed: reconcile again."""


class _RefusedError(Exception):
    """The API server refuses an action: reconcile again, with back-off, so that the status says why."""


class Controller:
    """The reconciler: a queue of jobs, and workers that reconcile them."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        queue: WorkQueue[Key],
        recorder: EventRecorder,
        settings: Settings,
        *,
        served: ServedSchema,
        noticed: Callable[[Key, Job | None], None] = lambda _key, _job: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` is fenced by the lease. `served`: shared with the other queues.

        `noticed` gets each key with its job, if any. `clock` is in seconds.
        """
        self._client, self._cache, self._queue, self._recorder = client, cache, queue, recorder
        self._settings, self._clock, self._noticed = settings, clock, noticed
        self._evidence = EvidenceSource(client, clock)
        self._served = served
        self._memories = Memories()

    async def work(self) -> None:
        """Reconcile jobs forever. A job that fails does not stop the others."""
        while True:
            key = await self._queue.get()
            with logs.about(namespace=key[0], job=key[1]):
                await self._work_on(key)

    async def _work_on(self, key: Key) -> None:
        started = self._clock()
        try:
            await self._reconcile(key)
        except _StaleError:
            self._queue.add_after(key, CONFLICT_SECONDS)
        except _RefusedError:
            self._queue.add_rate_limited(key)
        except ApiError as error:
            self._failed(key, f"api-{error.status or 'timeout'}", error, error.retry_after or 0.0)
            if error.refused:
                self._tell(key, refused_change(error))
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            # Not this worker was cancelled, but its request: when kopf ends, it cancels all tasks that started
            # after it.
            self._failed(key, "cancelled", error)
        except NotLeaderError as error:
            log.warning("%s/%s: %s", *key, error)
            self._queue.add_rate_limited(key)
        except Exception as error:
            log.exception("%s/%s: reconciliation failed", *key)
            self._failed(key, type(error).__name__, error)
            self._tell(key, operator_fault("this job", error))
        else:
            self._queue.forget(key)
        finally:
            self._queue.done(key)
            metrics.RECONCILE_SECONDS.observe(self._clock() - started)

    def _failed(self, key: Key, cause: str, error: BaseException, at_least: float = 0.0) -> None:
        metrics.ERRORS.labels(cause).inc()
        delay = self._queue.add_rate_limited(key, at_least)
        log.warning("%s/%s: retry in %.1f s: %s", *key, delay, error)

    def _tell(self, key: Key, event: Event) -> None:
        """Record an Event of the job, whose status may say nothing yet."""
        if (job := self._cache.job(key)) is not None:
            self._recorder.record(job, event)

    async def _reconcile(self, key: Key) -> None:
        await self._refresh_foreign(key)
        observed = self._cache.observe(key)
        self._noticed(key, observed.job if observed else None)
        if observed is None:
            self._memories.forget(key)
            self._queue.remove(key)
            return
        newest = max((attempt_of(observed.job.name, each.name) for each in observed.ray_jobs), default=0)
        logs.also(uid=observed.job.uid, **({"attempt": newest} if newest else {}))
        observed = replace(observed, job=await self._served.readable(observed.job))
        observed = await with_its_template(self._client, observed, self._settings.default_template)
        decision = await self._decide(key, observed)
        if decision.recheck_seconds is not None:
            self._queue.add_after(key, decision.recheck_seconds)
        if await self._is_outdated(key, observed, decision):
            self._queue.add(key)
        elif decision.prepare or decision.status is not None or decision.actions:
            await self._carry_out(key, observed.job, decision)
            self._queue.add(key)  # This may have been one step of several.
        else:
            for event in decision.events:
                self._recorder.record(observed.job, event)

    async def _decide(self, key: Key, observed: Observed) -> Decision:
        memory = self._memories.get(key, observed.job.uid) or Memory(observed.job.uid)
        if memory.refusals or memory.evidence is not None:
            observed = replace(observed, refusals=tuple(memory.refusals.values()), evidence=memory.evidence)
        decision = decide(observed, self._client.now(), self._settings)
        if decision.wants_evidence is None:
            if memory.evidence is not None:
                memory.evidence = None
            return decision
        if self._clock() - memory.evidence_at < EVIDENCE_SECONDS and memory.wanted is decision.wants_evidence:
            return decision
        memory = self._memories.of(key, observed.job.uid)
        memory.evidence_at, memory.wanted = self._clock(), decision.wants_evidence
        try:
            memory.evidence = await self._evidence.fetch(observed, decision.wants_evidence)
        except ApiError as error:
            log.warning("%s/%s: the reason why it is stuck could not be fetched: %s", *key, error)
            if not error.refused:
                return decision
            memory.evidence = Evidence(refused=True)
        return decide(replace(observed, evidence=memory.evidence), self._client.now(), self._settings)

    async def _is_outdated(self, key: Key, observed: Observed, decision: Decision) -> bool:
        """Whether a RayJob that is to be ended has changed. Read it again: its watch may be behind that of its pods.

        KubeRay deletes the workers of a successful attempt at once. Without this check such an attempt would count as
        one that lost its pods. The comparison is with what was observed, not with the cache: the watch may bring the
        same news while this request is running.
        """
        doomed = [each for each in observed.ray_jobs if each.name in decision.ends]
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
        """Act in order, but run independent applies together: each Role and RoleBinding takes up to 100 ms."""
        for together in waves(actions):
            if len(together) == 1:
                await self._act(key, job, together[0])
                continue
            outcomes = await asyncio.gather(*(self._act(key, job, one) for one in together), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    async def _write_status(self, key: Key, job: Job, status: dict[str, Any]) -> None:
        digest = hash(json.dumps(status, sort_keys=True))
        memory = self._memories.of(key, job.uid)
        if memory.written == (digest, job.resource_version):
            # The server stored something else than we sent, such as a field that its CRD lacks. Writing again would
            # never end.
            raise ValueError(
                f"the API server did not store the status of {'/'.join(key)} as written. "
                "Upgrade the CRD to this operator's version."
            )
        manifest = {**_head(job), "status": status}
        manifest["metadata"]["resourceVersion"] = job.resource_version
        try:
            answer = await self._client.apply(manifest, subresource="status")
        except ApiError as error:
            if error.conflict or error.not_found:
                await self._refresh(LORARLJOBS, key, job.name, job.uid)
                raise _StaleError from error
            raise
        self._cache.put(LORARLJOBS, answer)
        memory.written = (digest, answer["metadata"]["resourceVersion"])

    async def _act(self, key: Key, job: Job, action: Action) -> None:
        kind, name = _target(job, action)
        try:
            await self._do(key, job, action)
        except ApiError as error:
            if error.conflict or (error.not_found and not error.kind_missing):
                await self._refresh(LORARLJOBS, key, job.name, job.uid)
                raise _StaleError from error
            if isinstance(action, _UNTOLD) or (not error.refused and not error.already_exists):
                raise
            refusal = Refusal(kind, name, error.status, error.reason, error.message, self._client.now(), job.generation)
            self._memories.of(key, job.uid).refusals[kind, name] = refusal
            log.warning("%s/%s: the API server refused %s %s: %s", *key, kind, name, error.message)
            raise _RefusedError from error
        if memory := self._memories.get(key, job.uid):
            memory.refusals.pop((kind, name), None)

    async def _do(self, key: Key, job: Job, action: Action) -> None:
        match action:
            case Apply(manifest, new):
                await self._apply(key, manifest, new)
            case Create(manifest):
                await self._create(key, job, manifest)
            case Delete(kind, name, uid):
                await self._delete(key, written(kind), name, uid)
            case DeletePod(name, uid, at_once):
                log.warning("%s/%s: deletes pod %s, for KubeRay to replace it", *key, name)
                await self._delete(key, PODS, name, uid, grace_seconds=0 if at_once else None)
            case Scale(name) as scale:
                scaled = await self._client.patch(RAYCLUSTERS, key[0], name, scale.patch)
                self._cache.put(RAYCLUSTERS, scaled, key)
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
                raise _StaleError from error
            self._cache.put(resource, found, key)
            if owned.controller(found) == job.uid:
                return  # Our own request created it, and its answer was lost.
            raise
        self._cache.put(resource, answer, key)

    async def _apply(self, key: Key, manifest: dict[str, Any], new: bool) -> None:
        """Create or update an object that we own. An object of another owner stays as it is.

        Server-side apply alone would take over a foreign object, which would then be deleted with the job.
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
            return
        if owned.controller(found) != owned.controller(manifest):
            raise ApiError(
                f"apply {manifest['kind']} {meta['name']}", 409, "AlreadyExists", "it belongs to something else"
            )
        uid = {"uid": found["metadata"]["uid"]}
        if not owned.has(found, manifest):
            await self._client.apply({**manifest, "metadata": {**meta, **uid}})
        if gone := owned.left_over(found, manifest):
            about = {**uid, "annotations": dict.fromkeys(gone)}
            await self._client.merge(resource_of(manifest), key[0], meta["name"], {"metadata": about})

    async def _delete(
        self, key: Key, resource: Resource, name: str, uid: str, grace_seconds: int | None = None
    ) -> None:
        try:
            left = await self._client.delete(resource, key[0], name, uid, grace_seconds=grace_seconds)
        except ApiError as error:
            if not error.conflict:
                raise
            # If we took it for deleted, it might continue beside the next attempt.
            await self._refresh(resource, key, name, uid)
            raise _StaleError from error
        if left is None:
            self._cache.remove(resource, key, name, uid)
        else:
            self._cache.put(resource, left, key)

    async def _set_finalizers(self, job: Job, finalizers: tuple[str, ...]) -> None:
        meta = {"resourceVersion": job.resource_version, "uid": job.uid, "finalizers": list(finalizers)}
        answer = await self._client.merge(LORARLJOBS, job.namespace, job.name, {"metadata": meta})
        if job.deleted_at and not answer["metadata"].get("finalizers"):
            # This deleted the job, and the answer has its previous version.
            self._cache.remove(LORARLJOBS, (job.namespace, job.name), job.name, job.uid)
        else:
            self._cache.put(LORARLJOBS, answer)

    async def _refresh_foreign(self, key: Key) -> None:
        job = self._cache.job(key)
        if job is None or not (unwatched := self._cache.unwatched(key)):
            return
        memory = self._memories.of(key, job.uid)
        if self._clock() - memory.foreign_at < FOREIGN_SECONDS:
            return
        memory.foreign_at = self._clock()
        for resource, child in unwatched:
            await self._refresh(resource, key, child.name, child.uid)

    async def _refresh(self, resource: Resource, key: Key, name: str, uid: str) -> bool:
        """Read an object into the cache. Return whether that brought news."""
        found = await self._client.get(resource, key[0], name)
        gone = (found is None or found["metadata"]["uid"] != uid) and self._cache.remove(resource, key, name, uid)
        return (found is not None and self._cache.put(resource, found, key) is not None) or gone


def _head(job: Job) -> dict[str, Any]:
    meta = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
    return {"apiVersion": LORARLJOBS.api_version, "kind": LORARLJOBS.kind, "metadata": meta}


def _target(job: Job, action: Action) -> tuple[str, str]:
    match action:
        case Apply(manifest) | Create(manifest):
            return manifest["kind"], manifest["metadata"]["name"]
        case Delete(kind, name, _):
            return kind, name
        case DeletePod(name):
            return PODS.kind, name
        case Scale(name):
            return RAYCLUSTERS.kind, name
    return LORARLJOBS.kind, job.name
