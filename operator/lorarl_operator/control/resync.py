"""Lists everything at the start and from time to time, and corrects what the watches missed.

A watch that starts again lists what exists, but does not report what was deleted meanwhile. A watch may also die
unnoticed. Neither may leave a job waiting for a pod that no longer exists.

Each namespace is listed by itself. If a namespace or its Role is deleted, the others are unaffected. Until all kinds
of a namespace have been listed, nothing may be decided about its jobs: an unknown attempt would be created a second
time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from lorarl_operator import metrics
from lorarl_operator.control.cache import WATCHED, Cache, Key
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.decide.decision import Manifest
from lorarl_operator.decide.messages import sentences
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLSCHEDULES, LORARLSWEEPS, Resource

log = logging.getLogger(__name__)
INTERVAL_SECONDS = 300.0
SETTLE_SECONDS = 2.0
"""How long to wait, after a watch has listed again, for its news."""
FEW = 20
"""Changes of one page that are read one by one. With more, a watch has died, and everything is listed."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


class Resyncer:
    """Compares the cache with lists of everything."""

    def __init__(
        self,
        client: Client,
        cache: Cache,
        queue: WorkQueue[Key],
        namespaces: Sequence[str | None],
        watched: Mapping[Resource, str] = WATCHED,
    ) -> None:
        """`namespaces` are those served; None stands for all. `watched` are the kinds, each with its label selector."""
        self._client, self._cache, self._queue, self._namespaces = client, cache, queue, namespaces
        self._watched = watched
        self._wanted = asyncio.Event()
        self._wanted_at = 0.0
        self._listed: set[str | None] = set()
        """Namespaces whose kinds have all been listed once. From then on watches and resyncs keep them up to date."""
        self._unlisted: dict[str | None, ApiError] = {}
        """Namespaces whose last listing failed, and why."""

    def request(self) -> None:
        """Request a resync, because a watch has listed again. It waits until the watch has delivered its list."""
        self._wanted.set()
        self._wanted_at = asyncio.get_running_loop().time()

    def has_synced(self, namespace: str) -> bool:
        """Whether all objects of a namespace have been listed, so that its jobs may be decided about."""
        return namespace in self._listed or None in self._listed

    def why_not_synced(self) -> str | None:
        """Why no namespace could be listed yet; None as soon as one was."""
        if self._listed:
            return None
        why = " ".join(explain(namespace, error) for namespace, error in self._unlisted.items())
        return why or "the first listing is running"

    async def sync(self) -> None:
        """List everything for the first time, all kinds of all namespaces at once.

        `retry` repeats those that failed.
        """
        await asyncio.gather(*(self._list(namespace, at_once=True) for namespace in self._namespaces))

    async def retry(self) -> None:
        """Retry forever the namespaces that could not be listed, less and less often."""
        delay = FIRST_RETRY_SECONDS
        while True:
            await asyncio.sleep(delay)
            for namespace in tuple(self._unlisted):
                await self._list(namespace)
            delay = min(LONGEST_RETRY_SECONDS, 2 * delay) if self._unlisted else FIRST_RETRY_SECONDS

    async def run(self) -> None:
        """Resync forever: on request, and every INTERVAL_SECONDS."""
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
        """Compare all kinds of a namespace.

        `at_once` must be False while kopf runs: when kopf ends, it cancels all tasks that started after it.
        """
        lists = (self._correct(resource, namespace, selector) for resource, selector in self._watched.items())
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
            log.error("%s", explain(namespace, error))

    def _succeeded(self, namespace: str | None) -> None:
        failed_before = self._unlisted.pop(namespace, None)
        if namespace in self._listed and failed_before is None:
            return
        self._listed.add(namespace)
        metrics.NAMESPACES_UNLISTED.set(len(self._unlisted))
        if failed_before is not None:
            log.info("%s can be listed again", _named(namespace))
        # All jobs: the queue did not get what a listing found before it failed, nor what the watches brought before it.
        for job in self._cache.jobs():
            if namespace in (None, job.namespace):
                self._queue.add((job.namespace, job.name), urgent=not job.read_status())
        for resource in (LORARLSWEEPS, LORARLSCHEDULES):
            for key in self._cache.makers(resource, namespace):
                self._queue.add(key)

    async def _correct(self, resource: Resource, namespace: str | None, selector: str) -> None:
        corrected = await self._compare(resource, namespace, selector)
        if not corrected or namespace not in self._listed:
            return
        for key in corrected:
            self._queue.add(key)
        metrics.AUDIT_CORRECTIONS.labels(resource.plural).inc(len(corrected))
        log.info("the resync found %d changes of %s before their watch did", len(corrected), resource.plural)

    async def _compare(self, resource: Resource, namespace: str | None, selector: str) -> set[Key]:
        before = self._cache.newest(resource, namespace)
        news, version = await self._put_all(resource, namespace, selector, changed_only=namespace in self._listed)
        if version < before:
            # A list is never older than what was known when it was asked for, unless etcd was restored from a backup.
            log.warning(
                "the versions of %s went back from %d to %d: reading all again", resource.plural, before, version
            )
            self._cache.forget(resource, namespace)
            again, _ = await self._put_all(resource, namespace, selector)
            news |= again
        return news

    async def _put_all(
        self, resource: Resource, namespace: str | None, selector: str, *, changed_only: bool = False
    ) -> tuple[set[Key], int]:
        """Bring all objects of a kind into the cache; return the jobs with news, and the list's version.

        `changed_only` lists metadata, and reads whole objects only where these are news. While watches work, few are.
        """
        news: set[Key] = set()
        listed: set[str] = set()
        version = "0"
        pages = self._client.pages(resource, namespace, labels=selector, metadata_only=changed_only)
        async for items, page_version in pages:
            version = page_version
            listed |= {raw["metadata"]["uid"] for raw in items}
            changed = [raw for raw in items if self._cache.is_news(resource, raw) is not None]
            if changed_only and len(changed) > FEW:
                return await self._put_all(resource, namespace, selector)
            whole = [raw for one in changed for raw in await self._read(resource, one)] if changed_only else changed
            for raw in whole:
                try:
                    key = self._cache.put(resource, raw)
                except Exception:
                    log.exception("a %s could not be parsed: %s", resource.kind, raw["metadata"].get("name"))
                    continue
                if key is not None:
                    news.add(key)
        for key, name, uid in self._cache.vanished(resource, namespace, listed, version):
            if self._cache.remove(resource, key, name, uid):
                news.add(key)
        return news, int(version)

    async def _read(self, resource: Resource, partial: Manifest) -> list[Manifest]:
        """The whole object; none if it is gone by now. By a list: the operator may list all kinds that it watches."""
        meta = partial["metadata"]
        named = f"metadata.name={meta['name']}"
        return [
            raw async for items, _ in self._client.pages(resource, meta["namespace"], fields=named) for raw in items
        ]


def explain(namespace: str | None, error: ApiError) -> str:
    """The message about a namespace that cannot be listed (None: the cluster), with the fix."""
    if error.status != 403:
        return sentences(f"{_named(namespace)} cannot be listed; the operator tries again: {error}")
    hint = "Restore the ClusterRole and ClusterRoleBinding with helm upgrade."
    if namespace is not None:
        hint = f"Restore the Role and RoleBinding with helm upgrade, or remove {namespace} from watchNamespaces."
    return sentences(f"{_named(namespace)} cannot be listed, and its jobs are not served: {error}", hint)


def _named(namespace: str | None) -> str:
    return "the cluster" if namespace is None else f"namespace {namespace}"
