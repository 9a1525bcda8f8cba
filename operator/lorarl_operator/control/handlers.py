"""The watches, run by kopf: an object goes into the cache, and its job into the queue.

Nothing is written here, not even by kopf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from lorarl_operator import metrics
from lorarl_operator.control.cache import WATCHED, Cache, Key, key_of
from lorarl_operator.control.kuberay_version import VersionLog
from lorarl_operator.control.resync import Resyncer
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.kube.resources import LORARLJOBS, PODS, Resource

_WATCH_SECONDS = 300
_INACTIVE_SECONDS = 90.0
"""A watch that brings nothing for this long is opened again. The server sends a bookmark once per minute."""
_ERROR_DELAYS = (1, 2, 4, 8, 16, 32, 60)


class _Backoffs:
    """Delays in seconds before a watch is opened again. It never gives up while the API server is down."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.2, 0.5, 1.0, 2.0)
        while True:
            yield 5.0


class _NoProgress(kopf.ProgressStorage):
    """kopf need not store anything in our objects: there are only `on.event` handlers."""

    def fetch(self, **_: Any) -> None:
        """Nothing is stored."""

    def store(self, **_: Any) -> None:
        """Store nothing."""

    def purge(self, **_: Any) -> None:
        """Remove nothing."""

    def touch(self, **_: Any) -> None:
        """Store nothing."""

    def clear(self, *, essence: Any) -> Any:
        """Nothing to remove."""
        return essence


class _NoDiffs(kopf.DiffBaseStorage):
    """kopf need not compare objects with their previous state: that would deep-copy each object at each change."""

    def build(self, **_: Any) -> Any:
        """Nothing to compare."""
        return {}

    def fetch(self, **_: Any) -> Any:
        """Nothing is stored."""
        return None

    def store(self, **_: Any) -> None:
        """Store nothing."""


def watch(
    cache: Cache,
    queue: WorkQueue[Key],
    resyncer: Resyncer,
    configuration: Configuration,
    watched: Iterable[Resource] = WATCHED,
) -> kopf.OperatorRegistry:
    """Register one handler per kind, and the login."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, retries=3)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(configuration)

    versions = VersionLog()
    for resource in watched:
        handler = _handler(cache, queue, resyncer, resource, versions)
        kopf.on.event(resource.group, resource.version, resource.plural, registry=registry, id=resource.plural)(handler)
    return registry


def _handler(cache: Cache, queue: WorkQueue[Key], resyncer: Resyncer, kind: Resource, versions: VersionLog) -> Any:
    async def seen(event: Any, **_: Any) -> None:
        if kind == PODS:
            versions.note(event["object"])
        _handle_event(cache, queue, resyncer, kind, event)

    return seen


def _handle_event(cache: Cache, queue: WorkQueue[Key], resyncer: Resyncer, resource: Resource, event: Any) -> None:
    metrics.WATCH_EVENTS.labels(resource.plural).inc()
    raw = event["object"]
    if event["type"] is None:
        resyncer.request()  # The watch has started again with a list, which does not report deletions.
    if event["type"] == "DELETED":
        cache.put(resource, raw)  # Its last state, which the watch may not have reported before.
        meta, key = raw["metadata"], key_of(resource, raw)
        news = key is not None and cache.remove(resource, key, meta["name"], meta["uid"])
    else:
        key = cache.put(resource, raw)
        news = key is not None
    # Before the first listing of its namespace the job waits: that listing queues all jobs.
    if news and key is not None and resyncer.has_synced(key[0]):
        queue.add(key, urgent=resource == LORARLJOBS and event["type"] == "ADDED")


def settings() -> kopf.OperatorSettings:
    """Settings of kopf: it watches our objects, writes nothing, and never gives up."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.scanning.disabled = True  # Scanning needs permission to watch all CRDs and namespaces.
    chosen.persistence.finalizer = "lorarl.io/unused"
    chosen.persistence.progress_storage = _NoProgress()
    chosen.persistence.diffbase_storage = _NoDiffs()
    chosen.persistence.consistency_timeout = 0
    chosen.queueing.error_delays = _ERROR_DELAYS
    chosen.queueing.idle_timeout = 1.0
    chosen.queueing.exit_timeout = 0.5
    chosen.networking.error_backoffs = _Backoffs()
    chosen.networking.request_timeout = 60
    chosen.networking.connect_timeout = 10
    chosen.watching.server_timeout = _WATCH_SECONDS
    chosen.watching.client_timeout = _WATCH_SECONDS + 30
    chosen.watching.inactivity_timeout = _INACTIVE_SECONDS
    chosen.watching.chunk_size = 250
    for resource, selector in WATCHED.items():
        if selector:
            chosen.watching.label_selectors[resource.group, resource.version, resource.plural] = selector
    return chosen


async def _connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The configuration's server and credentials, read each time because a service account's token changes."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization") or ""
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        scheme=scheme if token else None,
        token=token or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )
