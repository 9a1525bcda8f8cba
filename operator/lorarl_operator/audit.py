"""Lists everything now and then, and mends what the watches missed.

A watch that had to start over lists what is there, but says nothing of what has gone meanwhile; and a watch may die unseen. Neither may
leave a job waiting for a pod that is no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from lorarl_operator import metrics
from lorarl_operator.cache import WATCHED, Cache, Key
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import Resource
from lorarl_operator.queue import WorkQueue

log = logging.getLogger(__name__)
INTERVAL_SECONDS = 300.0
SETTLE_SECONDS = 2.0
"""After a watch has listed anew, its news is awaited for so long before the audit."""
_FIRST_RETRY_SECONDS = 1.0


class Auditor:
    """Compares the cache with lists of everything."""

    def __init__(self, client: Client, cache: Cache, queue: WorkQueue[Key], namespaces: Sequence[str | None]) -> None:
        """`namespaces` are those served; None stands for all."""
        self._client, self._cache, self._queue, self._namespaces = client, cache, queue, namespaces
        self._wanted = asyncio.Event()
        self._wanted_at = 0.0

    def want(self) -> None:
        """A watch has listed anew: audit when it has listed all."""
        self._wanted.set()
        self._wanted_at = asyncio.get_running_loop().time()

    async def fill(self) -> None:
        """Fill the cache for the first time, all kinds at once, and have every job looked at, new ones first; tried until it works."""
        delay = _FIRST_RETRY_SECONDS
        while True:
            try:
                await asyncio.gather(*(self._compare(*one) for one in self._lists()))
            except ApiError as error:
                log.warning("the cluster could not be listed, again in %.0f s: %s", delay, error)
                await asyncio.sleep(delay)
                delay = min(30.0, 2 * delay)
            else:
                break
        for job in self._cache.jobs():
            self._queue.add((job.namespace, job.name), urgent=not job.read_status())

    async def run(self) -> None:
        """Audit for ever."""
        while True:
            try:
                async with asyncio.timeout(INTERVAL_SECONDS):
                    await self._wanted.wait()
                    while (settled := SETTLE_SECONDS - asyncio.get_running_loop().time() + self._wanted_at) > 0:
                        await asyncio.sleep(settled)
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._audit()
            except ApiError as error:
                log.warning("the audit is put off: %s", error)

    async def _audit(self) -> None:
        for resource, namespace, selector in self._lists():
            corrected = await self._compare(resource, namespace, selector)
            for key in corrected:
                self._queue.add(key)
            if corrected:
                metrics.AUDIT_CORRECTIONS.labels(resource.plural).inc(len(corrected))
                log.info("the audit found %d changes of %s before their watch did", len(corrected), resource.plural)

    def _lists(self) -> list[tuple[Resource, str | None, str]]:
        return [(resource, namespace, selector) for namespace in self._namespaces for resource, selector in WATCHED.items()]

    async def _compare(self, resource: Resource, namespace: str | None, selector: str) -> set[Key]:
        news: set[Key] = set()
        listed: set[str] = set()
        version = "0"
        async for items, page_version in self._client.pages(resource, namespace, labels=selector):
            version = page_version
            for raw in items:
                listed.add(raw["metadata"]["uid"])
                try:
                    key = self._cache.put(resource, raw)
                except Exception:
                    log.exception("a %s could not be read: %s", resource.kind, raw["metadata"].get("name"))
                    continue
                if key is not None:
                    news.add(key)
        for key, name, uid in self._cache.vanished(resource, namespace, listed, version):
            if self._cache.remove(resource, key, name, uid):
                news.add(key)
        return news
