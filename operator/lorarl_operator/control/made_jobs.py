"""How a sweep or a schedule makes jobs and writes its status. Both remember nothing that the cluster does not have."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from lorarl_api.redaction import redacted
from lorarl_operator.control.cache import Cache, Key
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide import parse
from lorarl_operator.decide.admission import by_admission
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.sweep_models import Sweep
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.kube.client import Client, Manifest
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, Resource

TRY_AGAIN_SECONDS = 60.0
"""After which time a job is tried again that a quota or a right refused, or whose name was taken."""
BRIEFLY_SECONDS = 5.0
"""The same where the job in the way is about to go."""
_FOR_GOOD = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)


class MadeJobs:
    """The jobs of all sweeps, or of all schedules."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        jobs: WorkQueue[Key],
        resource: Resource,
        reasons: type[Sweeping] | type[Scheduling],
    ) -> None:
        """`jobs` is the controller's queue, which hears of what is written here. `resource` is the kind of maker."""
        self._client, self._cache, self._jobs = client, cache, jobs
        self._resource, self._reasons = resource, reasons
        self._written: dict[str, tuple[str, str]] = {}
        """By a maker's uid: digest of its last written status, and its resourceVersion after that write."""

    def makers_of(self, key: Key, job: Job | None) -> list[Key]:
        """Return the makers to look at when a job has changed. A job that is gone may be of any one."""
        if job is None:
            return list(self._cache.makers(self._resource, key[0]))
        maker = job.maker
        return [(job.namespace, maker.name)] if maker is not None and maker.kind == self._resource.kind else []

    async def write_status(self, maker: Sweep | Schedule, status: dict[str, Any]) -> None:
        """Write a whole status, if the maker has not changed since it was observed.

        Raises:
            ValueError: The API server did not store the same status as written before. It would be written forever.
        """
        digest = hashlib.sha256(json.dumps(status, sort_keys=True).encode()).hexdigest()
        if self._written.get(maker.uid) == (digest, maker.resource_version):
            kind = f"{self._resource.kind}s"
            raise ValueError(f"the API server did not store the status as written. Upgrade the CRD of {kind}.")
        about = {"namespace": maker.namespace, "name": maker.name, "uid": maker.uid}
        manifest = {
            "apiVersion": self._resource.api_version,
            "kind": self._resource.kind,
            "metadata": about | {"resourceVersion": maker.resource_version},
            "status": status,
        }
        answer = await self._client.apply(manifest, subresource="status")
        self._cache.put(self._resource, answer)
        self._written[maker.uid] = (digest, answer["metadata"]["resourceVersion"])

    async def create(self, maker: Sweep | Schedule, manifest: Manifest) -> NotMade | None:
        """Create a job, unless it is there. Return why the API server refuses it; None if it does not."""
        try:
            self.put(await self._client.create(manifest))
        except ApiError as error:
            return await self._why_not(maker, manifest, error)
        return None

    async def tried(self, maker: Sweep | Schedule, manifest: Manifest) -> NotMade | None:
        """Return why the API server would refuse a job now; None if it would not. It is not created."""
        try:
            await self._client.try_create(manifest)
        except ApiError as error:
            return await self._why_not(maker, manifest, error)
        return None

    async def _why_not(self, maker: Sweep | Schedule, manifest: Manifest, error: ApiError) -> NotMade | None:
        """Why a job was refused; None if it is there."""
        if error.already_exists:
            found = await self._client.get(LORARLJOBS, maker.namespace, manifest["metadata"]["name"])
            if found is None or self._is_of(maker, found):
                return None  # It is gone, or our own request created it and its answer was lost.
            return self._taken(maker, found)
        if error.refused:
            for_good = error.status in _FOR_GOOD and not by_admission(error.message)
            reason = self._reasons.REFUSED if for_good else self._reasons.FORBIDDEN
            return self._not_made(reason, f"The API server refuses its job: {redacted(error.message)}")
        raise error

    async def known(self, namespace: str, name: str) -> None:
        """Read a job that the cache lacks, before it counts as deleted."""
        if self._cache.job((namespace, name)) is None and (raw := await self._client.get(LORARLJOBS, namespace, name)):
            self.put(raw)

    async def delete(self, job: Job) -> None:
        """Delete a job if it is still the one with this uid."""
        key = (job.namespace, job.name)
        left = await self._client.delete(LORARLJOBS, *key, job.uid)
        if left is not None:
            self.put(left)
        else:
            self._cache.remove(LORARLJOBS, key, job.name, job.uid)
            self._jobs.add(key)

    def put(self, raw: Manifest) -> None:
        """Store a job as the API server answered it. No watch will report it as news, so its controller hears here."""
        key = self._cache.put(LORARLJOBS, raw)
        if key is not None:
            self._jobs.add(key, urgent=True)

    def forget(self, uid: str) -> None:
        """Forget a maker that is gone."""
        self._written.pop(uid, None)

    def _is_of(self, maker: Sweep | Schedule, found: Manifest) -> bool:
        self.put(found)
        job = self._cache.job((maker.namespace, found["metadata"]["name"]))
        return job is not None and job.maker is not None and job.maker.uid == maker.uid

    def _taken(self, maker: Sweep | Schedule, found: Manifest) -> NotMade:
        """Why a job of another owner is in the way. That of an earlier maker of this name is deleted after it."""
        kind, name = self._resource.kind.removeprefix("LoRARL").lower(), found["metadata"]["name"]
        job = parse.job(found)
        of_earlier = job.maker is not None and (job.maker.kind, job.maker.name) == (self._resource.kind, maker.name)
        if of_earlier or job.deleted_at is not None:
            text = f"LoRARLJob {name} of another owner is being deleted. The new one follows."
            until = self._client.now() + timedelta(seconds=BRIEFLY_SECONDS)
            return NotMade(self._reasons.NAME_TAKEN, text, False, until, passes=True)
        text = f"LoRARLJob {name} exists, and is not of this {kind}. Delete it, or rename the {kind}."
        return self._not_made(self._reasons.NAME_TAKEN, text)

    def _not_made(self, reason: Sweeping | Scheduling, message: str) -> NotMade:
        until = self._client.now() + timedelta(seconds=TRY_AGAIN_SECONDS)
        return NotMade(reason, message, reason == self._reasons.REFUSED, until)
