"""A node is drained: the eviction API refuses a training's pods until a checkpoint is published, and not for longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.cluster import pods
from support.cluster.client import ApiError, Object
from support.cluster.kwok import add_node
from support.cluster.leftovers import leftovers
from support.cluster.lorarljobs import condition, lorarljob, phase, report, wait_event
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until

SECONDS = 40.0
NODE = "drained"
BUDGET = "PodDisruptionBudget"


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform) -> Iterator[Platform]:
    """The platform with one more node, which the tests drain."""
    add_node(kuberay_platform.cluster, NODE)
    yield kuberay_platform
    kuberay_platform.api.delete("Node", NODE)


@contextmanager
def cordoned(p: Platform) -> Iterator[None]:
    """What `kubectl drain` does first."""
    p.cluster.must("cordon", NODE)
    try:
        yield
    finally:
        p.cluster.must("uncordon", NODE)


def on_the_node(namespace: str, name: str, **cluster: Any) -> Object:
    there = {"nodeSelector": {"kubernetes.io/hostname": NODE}, "head": {"nodeSelector": {"type": "kwok"}}}
    return lorarljob(namespace, name, cluster={"disruption": "AfterCheckpoint", **there, **cluster})


def trains(p: Platform, namespace: str, name: str, step: int, kept: int) -> Object:
    """The job trains, has made so many steps, and its newest checkpoint keeps so many of them; its worker's pod."""
    p.api.wait("LoRARLJob", name, namespace, lambda job: phase(job) == "Running", seconds=SECONDS)
    (worker,) = p.pods(namespace, f"{name}-1", pods.WORKER)
    progress(p, namespace, name, step, kept, worker)
    p.api.wait(BUDGET, f"lorarl-{name}", namespace, bool, seconds=SECONDS)
    return worker


def progress(p: Platform, namespace: str, name: str, step: int, kept: int, worker: Object) -> None:
    adapter = {"uri": f"s3://team/adapters/{name}/{kept}", "step": kept, "version": kept + 1}
    workers = {"attempt": 1, "pods": [worker["metadata"]["name"]]}
    report(p.api, namespace, name, step=step, totalSteps=10, adapter=adapter, workers=workers)


def refusal(p: Platform, pod: Object) -> ApiError:
    """What the eviction API answers, which must not be a yes."""
    with pytest.raises(ApiError) as found:
        pods.evict(p.api, pod)
    return found.value


def drain(job: Object) -> Object:
    found: Object = job["status"].get("drain") or {}
    return found


def test_an_eviction_waits_for_a_checkpoint(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("waits")
    p.api.create(on_the_node(namespace, "whole"))
    worker = trains(p, namespace, "whole", step=3, kept=1)
    (head,) = p.pods(namespace, "whole-1", pods.HEAD)
    for pod in (worker, head):
        assert refusal(p, pod).status == 429
    with cordoned(p):
        job = p.api.wait("LoRARLJob", "whole", namespace, drain, seconds=SECONDS)
        assert (drain(job)["step"], "released" in drain(job)) == (3, False)
        assert "Node drained takes no new pods" in wait_event(p.api, namespace, "whole", "EvictionWaits")
        assert refusal(p, worker).status == 429
        progress(p, namespace, "whole", step=4, kept=4, worker=worker)
        p.api.wait_gone(BUDGET, "lorarl-whole", namespace, seconds=SECONDS)
        pods.evict(p.api, worker)
        wait_event(p.api, namespace, "whole", "EvictionAllowed")
        job = p.api.wait(
            "LoRARLJob", "whole", namespace, lambda job: condition(job, "Running")["reason"] == "Recovering"
        )
        assert job["status"]["preemptions"] == 1
        assert condition(job, "Disrupted")["reason"] == "EvictionByEvictionAPI"
    new = until(SECONDS, "a new worker is there", lambda: replacement(p, namespace, "whole-1", worker))
    progress(p, namespace, "whole", step=4, kept=4, worker=new)
    job = p.api.wait("LoRARLJob", "whole", namespace, lambda job: job["status"].get("recoveries") == 1, seconds=SECONDS)
    p.api.wait(BUDGET, "lorarl-whole", namespace, bool, seconds=SECONDS)
    assert refusal(p, new).status == 429, "the next drain waits too"
    p.api.delete("LoRARLJob", "whole", namespace)
    until(SECONDS, "nothing is left", lambda: not leftovers(p.api, namespace))


def replacement(p: Platform, namespace: str, ray_job: str, lost: Object) -> Object | None:
    workers = p.pods(namespace, ray_job, pods.WORKER)
    return next(
        (
            pod
            for pod in workers
            if pod["metadata"]["name"] != lost["metadata"]["name"] and pod["status"]["phase"] == "Running"
        ),
        None,
    )


@pytest.mark.long
def test_a_drain_does_not_wait_for_ever(p: Platform, replica: Operator) -> None:
    """The training does not answer. By its own figures, a step and a checkpoint take 2 s."""
    namespace = p.namespace("late")
    p.api.create(on_the_node(namespace, "late", terminationGracePeriodSeconds=1))
    worker = trains(p, namespace, "late", step=3, kept=1)
    with cordoned(p):
        p.api.wait_gone(BUDGET, "lorarl-late", namespace, seconds=SECONDS)
        assert "no checkpoint of step 3 or later" in wait_event(p.api, namespace, "late", "EvictionAllowed")
        pods.evict(p.api, worker)
    p.api.delete("LoRARLJob", "late", namespace)


def test_a_job_that_stops_training_lets_its_pods_go(p: Platform, replica: Operator) -> None:
    """Whether it succeeds, fails or is suspended, no budget is left of it; and a drain that began does not wait on."""
    namespace = p.namespace("ends")
    for name in ("succeeds", "fails", "rests"):
        job = on_the_node(namespace, name)
        p.api.create(job | {"spec": job["spec"] | {"backoffLimit": 0}})
    for name in ("succeeds", "fails", "rests"):
        trains(p, namespace, name, step=3, kept=1)
    p.finish(namespace, "succeeds-1", "SUCCEEDED")
    p.finish(namespace, "fails-1", "FAILED")
    p.api.patch("LoRARLJob", "rests", {"spec": {"suspend": True}}, namespace)
    ends = {"succeeds": "Succeeded", "fails": "Failed", "rests": "Suspended"}
    for name, end in ends.items():
        p.api.wait("LoRARLJob", name, namespace, lambda job, end=end: phase(job) == end, seconds=SECONDS)
        p.api.wait_gone(BUDGET, f"lorarl-{name}", namespace, seconds=SECONDS)
    (head,) = p.pods(namespace, "succeeds-1", pods.HEAD)
    pods.evict(p.api, head)
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
    until(SECONDS, "nothing is left", lambda: not leftovers(p.api, namespace))


def test_by_default_an_eviction_does_not_wait(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("now")
    p.api.create(on_the_node(namespace, "now", disruption="Immediate"))
    p.api.wait("LoRARLJob", "now", namespace, lambda job: phase(job) == "Running", seconds=SECONDS)
    (worker,) = p.pods(namespace, "now-1", pods.WORKER)
    pods.evict(p.api, worker)
    assert p.api.list(BUDGET, namespace) == []
    p.api.delete("LoRARLJob", "now", namespace)
