"""What the chaos tests have found, each on its own: news that comes late, and answers that say less than they seem to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from aiohttp import web

from support.cluster.api_proxy import Call, api_proxy
from support.cluster.crds import CRD
from support.cluster.lorarljobs import lorarljob, phase
from support.cluster.operator import ACCOUNT, SYSTEM, Operator, operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

AUDITED = "the cache is filled, watched and audited, which is not done again soon"


def test_an_attempt_that_succeeds_while_its_watch_is_silent_has_not_lost_its_pods(own_platform: Platform) -> None:
    p, silent = own_platform, threading.Event()
    lists = 0

    async def mute_rayjobs(call: Call) -> web.StreamResponse:
        nonlocal lists
        if call.watches and call.path.endswith("/rayjobs"):
            return await call.stream(silent_once=silent)
        lists += call.path.endswith("/rayjobs") and not call.writes
        return await call.forward()

    namespace = p.namespace()
    prepare(p.cluster)
    with api_proxy(p.cluster) as proxy:
        proxy.intercept = mute_rayjobs
        kubeconfig = proxy.kubeconfig(p.cluster, "mute", p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with operator(p.cluster, kubeconfig, "mute") as replica:
            wait_leader(replica)
            p.api.create(lorarljob(namespace, "quiet"))
            p.api.wait("LoRARLJob", "quiet", namespace, lambda job: phase(job) == "Running", seconds=60)
            until(20, AUDITED, lambda: lists == 3)
            silent.set()
            p.finish(namespace, "quiet-1", "SUCCEEDED")
            # KubeRay takes the workers away at once: that is all that the operator is told.
            job = p.api.wait("LoRARLJob", "quiet", namespace, lambda job: phase(job) not in ("Running", ""), seconds=60)
    assert (phase(job), job["status"]["rayJobName"], job["status"]["preemptions"]) == ("Succeeded", "quiet-1", 0)


def test_news_that_overtakes_its_own_question_is_heeded(own_platform: Platform) -> None:
    """The operator asks whether the attempt has ended, and the watch tells it before the answer comes."""
    p, silent, asked = own_platform, threading.Event(), threading.Event()
    replicas: list[Operator] = []
    lists = 0

    def tell_first(namespace: str) -> None:
        def told() -> float:
            return replicas[0].metric("lorarl_operator_watch_events_total", resource="rayjobs")

        before = told()
        silent.clear()
        p.api.patch("RayJob", "overtaken-1", {"metadata": {"annotations": {"test.invalid/again": "1"}}}, namespace)
        until(20, "the watch has told it", lambda: told() > before)

    async def overtake(call: Call) -> web.StreamResponse:
        nonlocal lists
        lists += call.path.endswith("/rayjobs") and not call.writes and not call.watches
        if call.watches and call.path.endswith("/rayjobs"):
            return await call.stream(silent_once=silent)
        if call.path.endswith("/rayjobs/overtaken-1") and not call.writes and silent.is_set() and not asked.is_set():
            asked.set()
            await asyncio.to_thread(tell_first, namespace)
        return await call.forward()

    namespace = p.namespace()
    prepare(p.cluster)
    with api_proxy(p.cluster) as proxy:
        proxy.intercept = overtake
        kubeconfig = proxy.kubeconfig(p.cluster, "overtaken", p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with operator(p.cluster, kubeconfig, "overtaken") as replica:
            replicas.append(wait_leader(replica))
            p.api.create(lorarljob(namespace, "overtaken"))
            p.api.wait("LoRARLJob", "overtaken", namespace, lambda job: phase(job) == "Running", seconds=60)
            until(20, AUDITED, lambda: lists == 3)
            silent.set()
            p.finish(namespace, "overtaken-1", "SUCCEEDED")
            job = p.api.wait("LoRARLJob", "overtaken", namespace, lambda job: phase(job) not in ("Running", ""), seconds=60)
    assert asked.is_set()
    assert (phase(job), job["status"]["rayJobName"], job["status"]["preemptions"]) == ("Succeeded", "overtaken-1", 0)


def test_a_rayjob_whose_deletion_met_a_conflict_is_not_taken_for_gone(own_platform: Platform) -> None:
    p, refused = own_platform, threading.Event()

    async def refuse_once(call: Call) -> web.StreamResponse:
        if call.method != "DELETE" or refused.is_set():
            return await call.forward()
        refused.set()
        return call.answer(409, "Conflict", "the object has been modified")

    namespace = p.namespace()
    prepare(p.cluster)
    with api_proxy(p.cluster) as proxy:
        proxy.intercept = refuse_once
        kubeconfig = proxy.kubeconfig(p.cluster, "refused", p.cluster.service_account_token(SYSTEM, ACCOUNT))
        with operator(p.cluster, kubeconfig, "refused") as replica:
            wait_leader(replica)
            p.api.create(lorarljob(namespace, "nap"))
            p.wait_running(namespace, "nap-1", seconds=60)
            p.api.patch("LoRARLJob", "nap", {"spec": {"suspend": True}}, namespace)
            p.api.wait("LoRARLJob", "nap", namespace, lambda job: phase(job) == "Suspended", seconds=30)
            assert refused.is_set()
            assert p.api.get("RayJob", "nap-1", namespace) is None
    p.api.delete("LoRARLJob", "nap", namespace)


@pytest.fixture(scope="module")
def own_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Not the one that the other tests share: there an operator leads already."""
    with tools_or_skip(), platform(tmp_path_factory.mktemp("faults"), crds=[CRD]) as running:
        yield running
