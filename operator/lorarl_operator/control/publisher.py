"""Publishes adapters to servers: looks at what they have, decides, and carries that out.

It has its own queue and its own workers, so that neither a slow nor a missing API of the servers delays any training.
Like the controller, it remembers nothing that the cluster does not have, except why the API server refused a step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus

from lorarl_api.faults import ManifestError
from lorarl_api.v1alpha1 import SCHEDULE_KIND, LoRARLJobSpec, TargetName
from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.event_recorder import EventRecorder
from lorarl_operator.control.publish_targets import TARGETS
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.worker import Worker
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.publishing import PublishDecision, decide_publishing, inputs, superseded, targets_of
from lorarl_operator.decide.served import Change, Fault, Put, Remove, Servers, Step
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, written

MANAGER = "lorarl-publisher"
"""Field manager of its part of a job's status."""
WORKERS = 4
CONFLICT_SECONDS = 0.5


@dataclass(slots=True)
class _Memory:
    """What is remembered about the job of this uid."""

    uid: str
    seen: str = ""
    """What the last decision followed from, as far as the job says it."""
    due: float = float("-inf")
    faults: dict[str, Fault] = field(default_factory=dict)


class Publisher:
    """A queue of jobs that publish, and workers that bring their servers to what is wanted."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        recorder: EventRecorder,
        *,
        served: ServedSchema,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` is fenced by the lease. `served`: shared with the other queues.

        `clock` is monotonic, in seconds.
        """
        self._client, self._cache, self._recorder, self._clock = client, cache, recorder, clock
        self._served = served
        self._queue: WorkQueue[Key] = WorkQueue(clock)
        self._memories: dict[Key, _Memory] = {}

    def notice(self, key: Key, job: Job | None) -> None:
        """Look soon at a job that publishes, or did, and at the others of its schedule."""
        for one in (job, *self._of_schedule(job)) if job is not None else ():
            if b'"publish"' in one.spec or b'"published"' in one.status:
                self._queue.add((one.namespace, one.name))

    async def work(self) -> None:
        """Publish forever. A job that fails does not stop the others."""
        await Worker(self._queue, self._publish, "job", "publishing", CONFLICT_SECONDS, self._tell).work()

    def _tell(self, key: Key, event: Event) -> None:
        if (found := self._cache.job(key)) is not None:
            self._recorder.record(found, event)

    async def _publish(self, key: Key) -> None:
        observed = self._cache.observe(key)
        if observed is None or observed.job.deleted_at is not None:  # What is served stays.
            self._memories.pop(key, None)
            self._queue.remove(key)
            return
        job, memory = observed.job, self._memories.get(key)
        if memory is None or memory.uid != job.uid:
            memory = self._memories[key] = _Memory(job.uid)
        try:
            spec = checked_spec(await self._served.readable(job))
        except ManifestError:
            return  # The condition Running says what is wrong.
        others = list(self._of_schedule(job))
        gone = superseded(job, others)
        seen = json.dumps([inputs(job), gone and gone.message], sort_keys=True)
        if seen == memory.seen and (left := memory.due - self._clock()) > 0:
            self._queue.add_after(key, left)
            return
        asked = {one: gone or await self._listed(job, spec, one) for one in targets_of([job, *others])}
        decision = decide_publishing(job, spec.publish or [], asked, memory.faults, self._client.now())
        again = await self._carry_out(job, memory, decision)
        seconds = CONFLICT_SECONDS if again else decision.recheck_seconds
        memory.seen, memory.due = "" if again else seen, self._clock() + seconds
        self._queue.add_after(key, seconds)

    async def _carry_out(self, job: Job, memory: _Memory, decision: PublishDecision) -> bool:
        """Write the status, then make the steps. Return whether to look again at once."""
        if decision.status is not None:
            about = {"namespace": job.namespace, "name": job.name, "uid": job.uid}
            manifest = {
                "apiVersion": LORARLJOBS.api_version,
                "kind": LORARLJOBS.kind,
                "metadata": about | {"resourceVersion": job.resource_version},
                "status": decision.status,
            }
            self._cache.put(LORARLJOBS, await self._client.apply(manifest, subresource="status", manager=MANAGER))
        for event in decision.events:
            self._recorder.record(job, event)
        before, memory.faults = memory.faults, {}
        overtaken = False
        for step in decision.steps:
            try:
                await self._make(job, step)
            except ApiError as error:
                if error.conflict or (error.not_found and not error.kind_missing):
                    overtaken = True  # Someone else changed it since it was listed.
                elif error.refused or error.already_exists:
                    memory.faults |= dict.fromkeys(step.entries, await self._refusal(error, step))
                else:
                    raise
        return overtaken or _reasons(memory.faults) != _reasons(before)  # The status says so at once.

    def _of_schedule(self, job: Job) -> Iterable[Job]:
        """The jobs of its schedule; none for another job."""
        maker = job.maker
        found = self._cache.schedule((job.namespace, maker.name)) if maker and maker.kind == SCHEDULE_KIND else None
        return self._cache.made_by(found).values() if found else ()

    async def _listed(self, job: Job, spec: LoRARLJobSpec, name: TargetName) -> Servers | Fault:
        target, lists = TARGETS[name], []
        for resource, labels in target.listed(job):
            pages = self._client.pages(resource, job.namespace, labels=labels)
            try:
                lists.append([raw async for items, _ in pages for raw in items])
            except ApiError as error:
                if not error.refused:
                    raise
                return await self._fault(error, name, f"list {resource.kind}s in namespace {job.namespace}")
        return target.read(job, spec, lists)

    async def _make(self, job: Job, step: Step) -> None:
        resource = written(step.kind)
        match step:
            case Put(manifest=manifest):
                await self._client.create(manifest)
            case Change(name=name, patch=patch):
                await self._client.merge(resource, job.namespace, name, patch)
            case Remove(name=name, uid=uid):
                await self._client.delete(resource, job.namespace, name, uid)

    async def _refusal(self, error: ApiError, step: Step) -> Fault:
        what = f"{step.kind} {step.name}"
        if error.already_exists:
            text = f"{what} exists, and is not of this job. Delete it, or change the name."
            return Fault(Publishing.NAME_TAKEN, text)
        name = next(name for name, target in TARGETS.items() if target.resource.kind == step.kind)
        return await self._fault(error, name, f"write {what}")

    async def _fault(self, error: ApiError, name: TargetName, what: str) -> Fault:
        """Why it was refused. Whether the kind is missing is asked: without the right to it, the answer is only 403."""
        target = TARGETS[name]
        resource = target.resource
        forbidden = error.status == HTTPStatus.FORBIDDEN and "is forbidden: User" in error.message
        if (forbidden or error.kind_missing) and not await self._client.serves(resource):
            kind = f"{resource.kind}s ({resource.api_version})"
            text = f"The cluster has no {kind}. Install {target.product}, or remove the entry."
            return Fault(Publishing.NOT_INSTALLED, text)
        if forbidden:
            value = f"publish.{name}.enabled"
            text = f"The operator may not {what}. An administrator sets {value}=true in the chart of lorarl."
            return Fault(Publishing.FORBIDDEN, text)
        return Fault(Publishing.REFUSED, f"The API server refuses to {what}: {error.message}")


def _reasons(faults: dict[str, Fault]) -> dict[str, Publishing]:
    """Without their messages, which may differ each time."""
    return {entry: fault.reason for entry, fault in faults.items()}
