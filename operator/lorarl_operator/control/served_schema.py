"""The schema of LoRARLJobs that the API server serves, which may be newer than this operator.

Its CRD is upgraded before the operator, and stays when the operator is downgraded. Then all jobs have new fields with
their defaults.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lorarl_api.defaults import knows, readable
from lorarl_api.v1alpha1 import GROUP, KIND, VERSION
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Job
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""How often the schema is fetched while there are jobs with unknown fields."""


class ServedSchema:
    """The served schema, fetched when a job needs it."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._client, self._clock = client, clock
        self._schema: dict[str, Any] = {}
        self._fetched_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    async def readable(self, job: Job) -> Job:
        """The job without the fields that this operator does not know and that have their default.

        If the schema is not served, the job is returned with these fields. Then it is not valid, and its status says
        which field.

        Raises:
            ApiError: The API server did not answer.
        """
        if _knows(job.spec):
            return job
        known = await self._without_defaults(job)
        if _knows(known.spec):
            return known
        # A watch that began before a downgrade keeps adding the newer defaults, which the schema no longer has.
        stored = await self._client.get(LORARLJOBS, job.namespace, job.name)
        if stored is None or (now := parse.job(stored)).uid != job.uid or now.generation != job.generation:
            return known  # the watch is about to say so
        return await self._without_defaults(replace(job, spec=now.spec))

    async def _without_defaults(self, job: Job) -> Job:
        async with self._one_at_a_time:
            if self._clock() - self._fetched_at >= FRESH_SECONDS:
                self._schema = await self._fetch()
                self._fetched_at = self._clock()
        spec = readable(job.read_spec(), self._schema)
        return replace(job, spec=json.dumps(spec, separators=(",", ":")).encode())

    async def _fetch(self) -> dict[str, Any]:
        try:
            return _spec_schema(await self._client.open_api(GROUP, VERSION))
        except ApiError as error:
            if error.transient:
                raise
            log.warning("Jobs have fields that this operator does not know, and it cannot read their schema: %s", error)
            return {}


def _spec_schema(document: dict[str, Any]) -> dict[str, Any]:
    """The schema of `spec` in an OpenAPI document; empty if the document has none."""
    kind = {"group": GROUP, "version": VERSION, "kind": KIND}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if kind in schema.get("x-kubernetes-group-version-kind", ()):
            spec: dict[str, Any] = schema.get("properties", {}).get("spec", {})
            return spec
    return {}


@lru_cache(maxsize=256)
def _knows(spec: bytes) -> bool:
    value = json.loads(spec)
    return not isinstance(value, dict) or knows(value)
