"""An elastic job with the real API server, scheduler, KubeRay and Kueue: it starts short, shrinks and grows.

kwok plays the nodes, and the test the trainer: it reports the pods on which `tests/run/test_elastic.py` really trains.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from support.cluster import pods
from support.cluster.client import ApiError, Object, is_ready
from support.cluster.crds import CRDS
from support.cluster.kueue import QUEUE_LABEL, add_queue
from support.cluster.kwok import add_node, lose_node
from support.cluster.lorarljobs import condition, events, lorarljob, phase, report, wait_event
from support.cluster.operator import SYSTEM, Operator, operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip
from support.helm import rendered

SECONDS = 60.0
WAIT = 4
ACCOUNT = "operator-lorarl"
"""The name that the chart gives it: the chart's policy for the account applies to these tests."""
EIGHT = {"gpusPerNode": 8, "cpusPerNode": "1", "memoryPerNode": "1Gi"}


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with tools_or_skip(), platform(tmp_path_factory.mktemp("elastic"), crds=CRDS, kueue=True, nodes=1) as running:
        for one in (one for one in rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")):
            running.cluster.must("apply", "-f", "-", stdin=json.dumps(one))
        yield running


@pytest.fixture(scope="module")
def replica(p: Platform) -> Iterator[Operator]:
    with operator(p.cluster, prepare(p.cluster, account=ACCOUNT), "elastic", f"--elastic-wait-seconds={WAIT}") as one:
        yield wait_leader(one)


def ready_workers(p: Platform, namespace: str, count: int) -> list[str]:
    def names() -> list[str]:
        return sorted(
            pod["metadata"]["name"]
            for pod in p.pods(namespace, "elastic-1", pods.WORKER)
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        )

    return until(SECONDS, f"{count} workers are ready", lambda: len(now := names()) == count and now)


def pending_workers(p: Platform, namespace: str) -> list[Object]:
    found = p.pods(namespace, "elastic-1", pods.WORKER)
    return [pod for pod in found if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]


def test_a_job_starts_short_grows_and_shrinks(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("elastic")

    def wait(reached: Callable[[Object], bool]) -> Object:
        return p.api.wait("LoRARLJob", "elastic", namespace, reached, seconds=SECONDS)

    def says(text: str) -> Callable[[Object], bool]:
        return lambda job: (
            condition(job, "Running").get("status") == "True" and (text in condition(job, "Running")["message"])
        )

    def trains(*names: str, step: int) -> None:
        workers = {"attempt": 1, "pods": list(names)}
        report(p.api, namespace, "elastic", step=step, totalSteps=10, resumedFromStep=step, workers=workers)

    p.api.create(lorarljob(namespace, "elastic", cluster={"nodes": 2, "minNodes": 1, **EIGHT}, backoffLimit=0))
    told = wait_event(p.api, namespace, "elastic", "StartsShort")
    assert told.startswith(
        f"Attempt 1 starts on 1 of 2 nodes, because no other pod got a node within {WAIT} s. No node"
    )
    job = wait(says("It has 1 of 2 nodes."))
    assert (job["status"]["nodes"], job["status"]["gpus"]) == (1, 8)
    (first,) = ready_workers(p, namespace, 1)
    trains(first, step=0)
    until(SECONDS, "the missing worker is asked for", lambda: len(pending_workers(p, namespace)) == 1)
    assert "NODES" in p.cluster.must("get", "lrj", "elastic", "-n", namespace, "-o", "wide")

    add_node(p.cluster, "node-1", gpus=8)
    both = ready_workers(p, namespace, 2)
    assert first in both
    trains(*both, step=3)
    assert (
        wait_event(p.api, namespace, "elastic", "Grew")
        == "Attempt 1 continues after step 3 with 1 of 2 nodes before, and 2 now."
    )
    job = wait(lambda job: job["status"].get("nodes") == 2)
    assert (job["status"]["gpus"], condition(job, "Running")["message"]) == (
        16,
        "Attempt 1 is training in RayJob elastic-1.",
    )

    (second,) = set(both) - {first}
    node = next(pod for pod in p.pods(namespace, "elastic-1", pods.WORKER) if pod["metadata"]["name"] == second)
    lose_node(p.cluster, node["spec"]["nodeName"])
    wait(lambda job: condition(job, "Running").get("reason") == "Recovering")
    trains(first, step=5)
    assert (
        wait_event(p.api, namespace, "elastic", "Shrank")
        == "Attempt 1 continues after step 5 with 2 of 2 nodes before, and 1 now."
    )
    job = wait(says("It has 1 of 2 nodes."))
    status = job["status"]
    assert (status["nodes"], status["gpus"], status["rayJobName"]) == (1, 8, "elastic-1")
    assert (status["attempts"], status["preemptions"], status["recoveries"]) == (0, 1, 1)
    assert len(pending_workers(p, namespace)) == 1, "so that there is room shows"
    p.finish(namespace, "elastic-1", "SUCCEEDED")
    wait(lambda job: phase(job) == "Succeeded")
    seen = [one["reason"] for one in events(p.api, namespace, "elastic")]
    assert [seen.count(reason) for reason in ("StartsShort", "Grew", "Shrank")] == [1, 1, 1]
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_the_charts_policy_lets_nothing_but_the_number_of_workers_change(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("policy")
    p.api.create(lorarljob(namespace, "fixed", cluster=EIGHT))
    narrow = p.cluster.api_as(p.cluster.service_account_token(SYSTEM, ACCOUNT))

    def made() -> Object | None:
        return next(iter(p.api.list("RayCluster", namespace)), None)

    cluster = until(SECONDS, "KubeRay has made the RayCluster", made)
    name, (group,) = cluster["metadata"]["name"], cluster["spec"]["workerGroupSpecs"]

    def told(**change: object) -> str:
        try:
            narrow.patch("RayCluster", name, change, namespace)
        except ApiError as error:
            return str(error)
        return ""

    def of_group(**change: object) -> Object:
        return {"workerGroupSpecs": [group | change]}

    changes: list[Object] = [
        {"spec": {"suspend": True}},
        {"spec": {"enableInTreeAutoscaling": True}},
        {"spec": {"autoscalerOptions": {"idleTimeoutSeconds": 1}}},
        {"spec": {"authOptions": None}},
        {"spec": {"headGroupSpec": {"serviceType": "LoadBalancer"}}},
        {"spec": of_group(rayStartParams={"num-cpus": "64"})},
        {"spec": of_group(maxReplicas=64)},
        {"spec": of_group(minReplicas=0)},
        {"spec": {"workerGroupSpecs": [group, group | {"groupName": "more"}]}},
        {"metadata": {"labels": {"any": "value"}}},
        {"metadata": {"finalizers": ["test.invalid/any"]}},
    ]
    kept = [change for change in changes if "may change only how many workers" not in told(**change)]
    assert kept == []
    assert told(spec=of_group(replicas=group["replicas"], scaleStrategy={"workersToDelete": ["any"]})) == ""
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_a_queue_is_asked_for_fewer_nodes_until_it_admits_them(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("queue")
    add_queue(p.cluster, namespace, namespace, {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"})
    cluster = {"nodes": 4, "minNodes": 1, **EIGHT, "gpusPerNode": 1}
    p.api.create(lorarljob(namespace, "queued", labels={QUEUE_LABEL: namespace}, cluster=cluster))
    job = p.api.wait("LoRARLJob", "queued", namespace, lambda job: phase(job) == "Running", seconds=2 * SECONDS)
    assert (job["status"]["rayJobName"], job["status"]["nodes"], job["status"]["restarts"]) == ("queued-3", 1, 0)
    told = [one["message"] for one in events(p.api, namespace, "queued") if one["reason"] == "FewerNodes"]
    assert [text.partition(" within")[0] for text in told] == [
        f"Queue {namespace} has not admitted attempt {attempt} with {nodes} of 4 nodes"
        for attempt, nodes in ((1, 4), (2, 2))
    ]
    (head,) = p.pods(namespace, "queued-3", pods.HEAD)
    env = {one["name"]: one.get("value") for one in head["spec"]["containers"][0]["env"]}
    assert env["LORARL_NODES"] == "1", "the driver waits for no other"
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
