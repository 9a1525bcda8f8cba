"""Faults that the chaos tests have found, one by one: late news, and answers that say less than they seem to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from support.cluster.api_proxy import Call, api_proxy
from support.cluster.crds import CRD
from support.cluster.lorarljobs import lorarljob, phase
from support.cluster.operator import ACCOUNT, SYSTEM, Operator, operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

Intercept = Callable[[Call], Awaitable[web.StreamResponse]]


class RayJobsWatch:
    """The operator's watch of the RayJobs, which a test can silence."""

    def __init__(self) -> None:
        self.silent = threading.Event()
        self._lists = 0

    async def __call__(self, call: Call) -> web.StreamResponse:
        if call.path.endswith("/rayjobs"):
            if call.watches:
                return await call.stream(silent_once=self.silent)
            self._lists += not call.writes
        return await call.forward()

    def silence(self) -> None:
        until(
            20, "the cache is filled, watched and resynced, and the next resync is not soon", lambda: self._lists >= 3
        )
        self.silent.set()


@contextmanager
def behind(p: Platform, name: str, intercept: Intercept) -> Iterator[Operator]:
    """A leading operator whose calls all go through `intercept`."""
    prepare(p.cluster)
    with api_proxy(p.cluster) as proxy:
        proxy.intercept = intercept
        kubeconfig = proxy.kubeconfig(p.cluster, name, p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with operator(p.cluster, kubeconfig, name) as replica:
            yield wait_leader(replica)


def wait_running(p: Platform, namespace: str, name: str) -> None:
    p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=60)


def require_success(p: Platform, namespace: str, name: str) -> None:
    """Check that the job's first attempt has succeeded, and that none was lost."""
    job = p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) not in ("Running", ""), seconds=60)
    assert (phase(job), job["status"]["rayJobName"], job["status"]["preemptions"]) == ("Succeeded", f"{name}-1", 0)


def test_an_attempt_that_succeeds_while_its_watch_is_silent(own_platform: Platform) -> None:
    """It does not count as one that lost its pods."""
    p, namespace, watch = own_platform, own_platform.namespace(), RayJobsWatch()
    # Before the operator starts: it resyncs soon only if its watches list something at their start.
    p.api.create(lorarljob(namespace, "quiet"))
    with behind(p, "mute", watch):
        wait_running(p, namespace, "quiet")
        watch.silence()
        p.finish(namespace, "quiet-1", "SUCCEEDED")
        # KubeRay deletes the workers at once. The operator learns nothing else.
        require_success(p, namespace, "quiet")


def test_news_that_overtakes_its_own_question_counts(own_platform: Platform) -> None:
    """The operator asks whether the attempt has ended, and the watch reports it before the answer comes."""
    p, namespace, watch, asked = own_platform, own_platform.namespace(), RayJobsWatch(), threading.Event()
    replicas: list[Operator] = []

    def report_first() -> None:
        def reported() -> float:
            return replicas[0].metric("lorarl_operator_watch_events_total", resource="rayjobs")

        before = reported()
        watch.silent.clear()
        p.api.patch("RayJob", "overtaken-1", {"metadata": {"annotations": {"test.invalid/again": "1"}}}, namespace)
        until(20, "the watch has reported it", lambda: reported() > before)

    async def overtake(call: Call) -> web.StreamResponse:
        if (
            call.path.endswith("/rayjobs/overtaken-1")
            and not call.writes
            and watch.silent.is_set()
            and not asked.is_set()
        ):
            asked.set()
            await asyncio.to_thread(report_first)
        return await watch(call)

    p.api.create(lorarljob(namespace, "overtaken"))
    with behind(p, "overtaken", overtake) as replica:
        replicas.append(replica)
        wait_running(p, namespace, "overtaken")
        watch.silence()
        p.finish(namespace, "overtaken-1", "SUCCEEDED")
        require_success(p, namespace, "overtaken")
    assert asked.is_set()


def test_a_rayjob_whose_deletion_met_a_conflict_is_not_lost(own_platform: Platform) -> None:
    p, namespace, refused = own_platform, own_platform.namespace(), threading.Event()

    async def refuse_once(call: Call) -> web.StreamResponse:
        if call.method != "DELETE" or refused.is_set():
            return await call.forward()
        refused.set()
        return call.answer(409, "Conflict", "the object has been modified")

    with behind(p, "refused", refuse_once):
        p.api.create(lorarljob(namespace, "nap"))
        p.wait_running(namespace, "nap-1", seconds=60)
        p.api.patch("LoRARLJob", "nap", {"spec": {"suspend": True}}, namespace)
        p.api.wait("LoRARLJob", "nap", namespace, lambda job: phase(job) == "Suspended", seconds=30)
        assert refused.is_set()
        assert p.api.get("RayJob", "nap-1", namespace) is None
    p.api.delete("LoRARLJob", "nap", namespace)


@pytest.fixture(scope="module")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A separate platform: on the shared one an operator leads already."""
    with tools_or_skip(), platform(tmp_path_factory.mktemp("faults"), crds=[CRD]) as running:
        yield running
