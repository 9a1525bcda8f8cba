"""Listings in virtual time: each namespace by itself, and no decisions about a namespace that is not listed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from lorarl_operator import logs
from lorarl_operator.control import handlers
from lorarl_operator.control.cache import WATCHED, Cache, Key
from lorarl_operator.control.resync import INTERVAL_SECONDS, LONGEST_RETRY_SECONDS, Resyncer, explain
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, RAYJOBS, Resource
from support import virtual_time
from unit.operator.observed_world import raw_job


class Lists(Client):
    """Lists with one job `demo` per namespace. It refuses some kinds in some namespaces."""

    def __init__(self) -> None:
        self.refused: set[tuple[str | None, Resource]] = set()
        self.status, self.reason = 403, "Forbidden"
        self.asked: list[tuple[str | None, float]] = []

    async def pages(
        self, resource: Resource, namespace: str | None, **_: Any
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.asked.append((namespace, virtual_time.now()))
        if (namespace, resource) in self.refused:
            raise ApiError(resource.path(namespace), self.status, self.reason, "no permission to list")
        yield [job_in(namespace or "a")] if resource == LORARLJOBS else [], "5"

    def refuse(self, namespace: str | None, *resources: Resource) -> None:
        self.refused = {(namespace, resource) for resource in resources or WATCHED}


class Story:
    """A resyncer with what it reads and what it fills."""

    def __init__(self, *namespaces: str | None) -> None:
        self.lists, self.cache = Lists(), Cache()
        self.queue: WorkQueue[Key] = WorkQueue(virtual_time.now)
        self.resyncer = Resyncer(self.lists, self.cache, self.queue, namespaces)

    async def taken(self) -> list[Key]:
        """All queued keys."""
        found = []
        while len(self.queue):
            found.append(await self.queue.get())
            self.queue.done(found[-1])
        return sorted(found)

    def watch(self, namespace: str) -> None:
        """A watch brings news of the job of a namespace."""
        event = {"type": "MODIFIED", "object": job_in(namespace, resourceVersion="2")}
        handlers._handle_event(self.cache, self.queue, self.resyncer, LORARLJOBS, event)


def job_in(namespace: str, **metadata: str) -> dict[str, Any]:
    return raw_job(namespace=namespace, uid=f"uid-{namespace}", **metadata)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story()

    virtual_time.run(whole())


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def unlisted() -> float | None:
    return REGISTRY.get_sample_value("lorarl_operator_namespaces_unlisted")


@pytest.mark.parametrize("kinds", [(), (RAYJOBS,)], ids=["no permission", "one kind refused"])
def test_an_unlisted_namespace_delays_no_other_and_is_served_later(
    kinds: tuple[Resource, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def story() -> None:
        one = Story("a", "b", "c")
        one.lists.refuse("b", *kinds)
        await one.resyncer.sync()
        assert await one.taken() == [("a", "demo"), ("c", "demo")]
        assert (unlisted(), one.resyncer.why_not_synced()) == (1, None)
        retrying = asyncio.create_task(one.resyncer.retry())
        await asyncio.sleep(1000)
        assert await one.taken() == []
        (said,) = errors(caplog)
        for part in (
            "namespace b ",
            "no permission to list",
            "Restore the Role and RoleBinding with helm upgrade, or remove b from watchNamespaces.",
        ):
            assert part in said
        one.lists.refused.clear()
        await asyncio.sleep(LONGEST_RETRY_SECONDS)
        assert await one.taken() == [("b", "demo")]
        assert unlisted() == 0
        asked = len(one.lists.asked)
        await asyncio.sleep(1000)
        assert len(one.lists.asked) == asked, "all namespaces are listed, and nothing is retried"
        retrying.cancel()

    play(story)
    assert len(errors(caplog)) == 1 and "namespace b can be listed again" in caplog.messages


def test_retries_slow_down_to_every_30_s() -> None:
    async def story() -> None:
        one = Story("b")
        one.lists.refuse("b", LORARLJOBS)
        retrying = asyncio.create_task(one.resyncer.retry())
        await one.resyncer.sync()
        await asyncio.sleep(120)
        retrying.cancel()
        times = [when for _, when in one.lists.asked if when]
        assert times == [1, 3, 7, 15, 31, 61, 91]

    play(story)


def test_news_of_an_unlisted_namespace_leads_to_no_decision() -> None:
    """Its RayJob may exist, and would be created a second time."""

    async def story() -> None:
        one = Story("a", "b")
        one.lists.refuse("b", RAYJOBS)
        await one.resyncer.sync()
        await one.taken()
        one.watch("b")
        assert await one.taken() == []
        assert one.cache.observe(("b", "demo")) is not None, "it is kept for later"
        one.lists.refused.clear()
        retrying = asyncio.create_task(one.resyncer.retry())
        await asyncio.sleep(2)
        retrying.cancel()
        assert await one.taken() == [("b", "demo")]
        one.cache.put(LORARLJOBS, job_in("c"))
        one.watch("c")
        assert await one.taken() == [], "nor of a namespace that is not served"

    play(story)


def test_a_resync_continues_after_a_namespace_without_permission(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        one = Story("a", "b", "c")
        await one.resyncer.sync()
        await one.taken()
        one.lists.refuse("b")
        one.cache.put(LORARLJOBS, raw_job(namespace="c", uid="gone", name="gone", resourceVersion="2"))
        resyncing = asyncio.create_task(one.resyncer.run())
        await asyncio.sleep(2 * INTERVAL_SECONDS + 1)
        assert await one.taken() == [("c", "gone")]
        assert len(errors(caplog)) == 1 and unlisted() == 1
        one.lists.refused.clear()
        await asyncio.sleep(INTERVAL_SECONDS)
        assert await one.taken() == [("b", "demo")], "what was missed meanwhile is queued"
        assert unlisted() == 0
        resyncing.cancel()

    play(story)


def test_a_restore_of_etcd_is_noticed_at_the_next_listing(caplog: pytest.LogCaptureFixture) -> None:
    """Before, all that the API server said was older than what was known, and ignored until a restart."""

    async def story() -> None:
        one = Story("a")
        one.cache.put(LORARLJOBS, job_in("a", resourceVersion="900"))
        await one.resyncer.sync()
        observed = one.cache.observe(("a", "demo"))
        assert observed is not None and observed.job.resource_version == "1"
        assert await one.taken() == [("a", "demo")]
        assert [each for each in caplog.messages if "went back from 900 to 5" in each]
        await one.resyncer.sync()
        assert await one.taken() == []

    play(story)


class Stored(Client):
    """Jobs as an API server lists them: whole, by their metadata, or one by its name."""

    def __init__(self, jobs: int) -> None:
        self.jobs = {f"job-{number}": raw_job(name=f"job-{number}", uid=f"uid-{number}") for number in range(jobs)}
        self.asked: list[tuple[str, bool]] = []

    async def pages(
        self, resource: Resource, namespace: str | None, *, fields: str = "", metadata_only: bool = False, **_: Any
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        if resource != LORARLJOBS:
            yield [], "5"
            return
        self.asked.append((fields, metadata_only))
        found = [job for name, job in self.jobs.items() if fields in ("", f"metadata.name={name}")]
        yield [{"metadata": job["metadata"]} for job in found] if metadata_only else found, "5"

    def change(self, *numbers: int) -> None:
        for number in numbers:
            name = f"job-{number}"
            self.jobs[name] = raw_job({"suspend": True}, name=name, uid=f"uid-{number}", resourceVersion="4")


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ([], [("", True)]),
        ([3], [("", True), ("metadata.name=job-3", False)]),
        (range(30), [("", True), ("", False)]),
    ],
)
def test_a_resync_reads_metadata_and_whole_objects_where_they_changed(
    changed: Iterable[int], asked: list[tuple[str, bool]]
) -> None:
    async def story() -> None:
        server, cache = Stored(jobs=40), Cache()
        queue: WorkQueue[Key] = WorkQueue(virtual_time.now)
        resyncer = Resyncer(server, cache, queue, ["team"])
        await resyncer.sync()
        assert server.asked == [("", False)]
        server.change(*changed)
        del server.asked[:]
        await resyncer.sync()
        assert server.asked == asked
        suspended = [job.name for job in cache.jobs() if job.read_spec().get("suspend")]
        assert suspended == [f"job-{number}" for number in changed]
        del server.jobs["job-5"]
        await resyncer.sync()
        assert len(cache) == 39

    play(story)


def test_another_reason_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        one = Story(None)
        one.lists.refuse(None)
        one.lists.status, one.lists.reason = 0, "ConnectionFailed"
        retrying = asyncio.create_task(one.resyncer.retry())
        await one.resyncer.sync()
        await asyncio.sleep(100)
        one.lists.status, one.lists.reason = 403, "Forbidden"
        await asyncio.sleep(100)
        retrying.cancel()

    play(story)
    first, second = errors(caplog)
    assert "the cluster cannot be listed; the operator tries again: " in first
    assert "Restore the ClusterRole and ClusterRoleBinding with helm upgrade" in second


@pytest.mark.parametrize(
    ("namespaces", "called"), [((None,), {"the cluster"}), (("a", "b"), {"namespace a", "namespace b"})]
)
def test_why_nothing_could_be_listed_yet(namespaces: tuple[str | None, ...], called: set[str]) -> None:
    async def story() -> None:
        one = Story(*namespaces)
        assert one.resyncer.why_not_synced() == "the first listing is running"
        one.lists.refused = {(namespace, RAYJOBS) for namespace in namespaces}
        await one.resyncer.sync()
        said = one.resyncer.why_not_synced()
        assert said is not None and all(f"{name} cannot be listed, and " in said for name in called)
        assert not one.resyncer.has_synced("a")
        one.lists.refused.pop()
        await one.resyncer.sync()
        assert one.resyncer.why_not_synced() is None

    play(story)


def test_one_listing_covers_all_namespaces() -> None:
    async def story() -> None:
        one = Story(None)
        await one.resyncer.sync()
        assert one.resyncer.has_synced("any")
        assert await one.taken() == [("a", "demo")]

    play(story)


def test_an_error_other_than_forbidden_has_no_hint_about_roles() -> None:
    message = explain("b", ApiError("GET /b", 503, "ServiceUnavailable", "etcd has no leader"))
    assert "etcd has no leader" in message and "Role" not in message


def test_repeated_attempts_of_kopf_are_not_logged() -> None:
    def logged(name: str, message: str) -> bool:
        return logs._is_news(logging.LogRecord(name, logging.ERROR, "", 0, message, None, None))

    attempt = "Request attempt #{} failed; will retry: GET https://server/pods -> APIForbiddenError()"
    kopfs = "kopf._cogs.clients.watching"
    assert [logged(kopfs, attempt.format(number)) for number in (1, 2, 10, 11)] == [True, False, False, False]
    assert logged(kopfs, "Request attempt #9 failed; escalating: GET https://server/pods")
    assert logged("lorarl_operator.control.resync", attempt.format(2))
