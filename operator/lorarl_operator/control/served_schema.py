"""The schemas of lorarl's kinds that the API server serves, which may be newer than this operator.

Their CRDs are upgraded before the operator, and stay when the operator is downgraded. Then all jobs, sweeps and
schedules have new fields with their defaults. All decisions by a spec read it through this.
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
from lorarl_api.v1alpha1 import GROUP, KIND, SCHEDULE_KIND, SWEEP_KIND, VERSION
from lorarl_operator.decide import parse
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.sweep_models import Sweep
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0
"""How often the schemas are fetched while there are objects with unknown fields."""
_KINDS: dict[type, str] = {Job: KIND, Sweep: SWEEP_KIND, Schedule: SCHEDULE_KIND}


class ServedSchema:
    """The served schemas, fetched when an object needs them."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._client, self._clock = client, clock
        self._schemas: dict[str, dict[str, Any]] = {}
        self._fetched_at = float("-inf")
        self._one_at_a_time = asyncio.Lock()

    async def readable[T: (Job, Sweep, Schedule)](self, one: T) -> T:
        """The object without the fields that this operator does not know and that have their default.

        If the schema is not served, it is returned with these fields. Then it is not valid, and its status says which
        field.

        Raises:
            ApiError: The API server did not answer.
        """
        kind = _KINDS[type(one)]
        if _knows(one.spec, kind):
            return one
        known = await self._without_defaults(one, kind)
        if _knows(known.spec, kind) or not isinstance(one, Job):
            return known
        # A watch that began before a downgrade keeps adding the newer defaults, which the schema no longer has. The
        # status that a sweep or schedule then gets is answered without them.
        stored = await self._client.get(LORARLJOBS, one.namespace, one.name)
        if stored is None or (now := parse.job(stored)).uid != one.uid or now.generation != one.generation:
            return known  # the watch is about to say so
        return await self._without_defaults(replace(one, spec=now.spec), kind)

    async def _without_defaults[T: (Job, Sweep, Schedule)](self, one: T, kind: str) -> T:
        async with self._one_at_a_time:
            if self._clock() - self._fetched_at >= FRESH_SECONDS:
                self._schemas = await self._fetch()
                self._fetched_at = self._clock()
        spec = readable(one.read_spec(), self._schemas.get(kind, {}), kind)
        return replace(one, spec=json.dumps(spec, separators=(",", ":")).encode())

    async def _fetch(self) -> dict[str, dict[str, Any]]:
        try:
            document = await self._client.open_api(GROUP, VERSION)
        except ApiError as error:
            if error.transient:
                raise
            log.warning("Objects have fields that this operator does not know, and it cannot read a schema: %s", error)
            return {}
        return {kind: _spec_schema(document, kind) for kind in _KINDS.values()}


def _spec_schema(document: dict[str, Any], kind: str) -> dict[str, Any]:
    """The schema of a kind's `spec` in an OpenAPI document; empty if the document has none."""
    about = {"group": GROUP, "version": VERSION, "kind": kind}
    for schema in document.get("components", {}).get("schemas", {}).values():
        if about in schema.get("x-kubernetes-group-version-kind", ()):
            spec: dict[str, Any] = schema.get("properties", {}).get("spec", {})
            return spec
    return {}


@lru_cache(maxsize=256)
def _knows(spec: bytes, kind: str) -> bool:
    value = json.loads(spec)
    return not isinstance(value, dict) or knows(value, kind)
