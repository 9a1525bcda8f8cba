"""Lists everything at first and now and then, and mends what the watches missed.

A watch that had to start over lists what is there, but says nothing of what has gone meanwhile; and a watch may die unseen. Neither may
leave a job waiting for a pod that is no more.

Each namespace is listed by itself: one that is gone, or whose Role is, holds up nobody else. Until all kinds of a namespace have been
listed nothing may be decided about its jobs: an attempt that is not known would be made a second time.
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
from lorarl_operator.workqueue import WorkQueue

log = logging.getLogger(__name__)
INTERVAL_SECONDS = 300.0
SETTLE_SECONDS = 2.0
"""After a watch has listed anew, its news is awaited for so long before the audit."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


class Resyncer:
    """Compares the cache with lists of everything."""

    def __init__(self, client: Client, cache: Cache, queue: WorkQueue[Key], namespaces: Sequence[str | None]) -> None:
        """`namespaces` are those served; None stands for all."""
        self._client, self._cache, self._queue, self._namespaces = client, cache, queue, namespaces
        self._wanted = asyncio.Event()
        self._wanted_at = 0.0
        self._listed: set[str | None] = set()
        """Namespaces of which all kinds have been listed once: the watches and the audits keep them from then on."""
        self._unlisted: dict[str | None, ApiError] = {}
        """Namespaces whose last listing failed, and why."""

    def want(self) -> None:
        """A watch has listed anew: audit when it has listed all."""
        self._wanted.set()
        self._wanted_at = asyncio.get_running_loop().time()

    def knows(self, namespace: str) -> bool:
        """Whether the jobs of a namespace may be decided about: all that belongs to them has been listed."""
        return namespace in self._listed or None in self._listed

    def blind(self) -> str | None:
        """Why nothing at all could be listed yet; None as soon as one namespace was."""
        if self._listed:
            return None
        why = "; ".join(complaint(namespace, error) for namespace, error in self._unlisted.items())
        return why or "the first listing is under way"

    async def fill(self) -> None:
        """List everything for the first time, all kinds of all namespaces at once; `retry` goes on with those that did not answer."""
        await asyncio.gather(*(self._list(namespace, at_once=True) for namespace in self._namespaces))

    async def retry(self) -> None:
        """List namespaces that could not be listed again, for ever, and less and less often."""
        delay = FIRST_RETRY_SECONDS
        while True:
            await asyncio.sleep(delay)
            for namespace in tuple(self._unlisted):
                await self._list(namespace)
            delay = min(LONGEST_RETRY_SECONDS, 2 * delay) if self._unlisted else FIRST_RETRY_SECONDS

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
            for namespace in self._namespaces:
                await self._list(namespace)

    async def _list(self, namespace: str | None, *, at_once: bool = False) -> None:
        """Compare all kinds of a namespace. Not `at_once` while kopf runs: at its end it cancels tasks that began after it."""
        lists = (self._correct(resource, namespace, selector) for resource, selector in WATCHED.items())
        try:
            if at_once:
                await asyncio.gather(*lists)
            else:
                for one in lists:
                    await one
        except ApiError as error:
            self._failed(namespace, error)
        else:
            self._succeeded(namespace)

    def _failed(self, namespace: str | None, error: ApiError) -> None:
        before = self._unlisted.get(namespace)
        self._unlisted[namespace] = error
        metrics.NAMESPACES_UNLISTED.set(len(self._unlisted))
        if before is None or (before.status, before.reason) != (error.status, error.reason):
            log.error("%s", complaint(namespace, error))

    def _succeeded(self, namespace: str | None) -> None:
        failed_before = self._unlisted.pop(namespace, None)
        if namespace in self._listed and failed_before is None:
            return
        self._listed.add(namespace)
        metrics.NAMESPACES_UNLISTED.set(len(self._unlisted))
        if failed_before is not None:
            log.info("%s can be listed again", _called(namespace))
        # All of them: what a listing found before it failed was told to nobody, nor what the watches brought before the first one.
        for job in self._cache.jobs():
            if namespace in (None, job.namespace):
                self._queue.add((job.namespace, job.name), urgent=not job.read_status())

    async def _correct(self, resource: Resource, namespace: str | None, selector: str) -> None:
        corrected = await self._compare(resource, namespace, selector)
        if not corrected or namespace not in self._listed:
            return
        for key in corrected:
            self._queue.add(key)
        metrics.AUDIT_CORRECTIONS.labels(resource.plural).inc(len(corrected))
        log.info("the audit found %d changes of %s before their watch did", len(corrected), resource.plural)

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


def complaint(namespace: str | None, error: ApiError) -> str:
    """What is said of a namespace that cannot be listed (None: of the cluster), and the mend."""
    if error.status != 403:
        return f"{_called(namespace)} cannot be listed, and is tried again: {error}"
    hint = "restore the ClusterRole and ClusterRoleBinding with helm upgrade"
    if namespace is not None:
        hint = f"restore the Role and RoleBinding with helm upgrade, or take {namespace} out of watchNamespaces"
    return f"{_called(namespace)} cannot be listed, and its jobs are not served: {error}; {hint}"


def _called(namespace: str | None) -> str:
    return "the cluster" if namespace is None else f"namespace {namespace}"
