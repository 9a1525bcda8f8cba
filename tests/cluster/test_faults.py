"""One job takes every fault that a cluster can have, one at a time, and succeeds with a good adapter.

A step costs a second or two and every step is published, so each fault may cost one step at most. What each cost is
printed, and kept in out/cluster/summary.json.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cluster.kueue import install_kueue
from node.installation import KUBERAY, STORE, SYSTEM, apply, make_room, wait_available
from node.node import Node
from support.cluster.kubectl import RealCluster
from support.cluster.kueue import NAMESPACE as KUEUE
from support.cluster.kueue import QUEUE_LABEL, add_queue
from support.cluster.processes import until
from support.real_cluster.example import ADDITION
from support.real_cluster.store import bucket_of
from support.real_cluster.trial import START_SECONDS, Trial
from support.real_cluster.watched import watched

pytestmark = pytest.mark.long

TEAM = "faults"
JOB = "struck"
QUEUE = "faults"
OUTAGE_SECONDS = 60.0
LEADERS_SECONDS = 180.0
MORE_THAN_IT_WILL_MAKE = 2000
LAST_STEPS = 15


@pytest.fixture(scope="module")
def trial(installed: RealCluster, out: Path) -> Iterator[Trial]:
    """The example's job, with more steps than it will make, as it trains."""
    install_kueue(installed)
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
    make_room(installed, TEAM)
    changes = {
        "trainer.steps": MORE_THAN_IT_WILL_MAKE,
        "checkpoint.uri": f"s3://lorarl/faults-{time.time():.0f}",
        "data.eval.every": MORE_THAN_IT_WILL_MAKE,
    }
    apply(installed, ADDITION.manifest(JOB, changes), namespace=TEAM)
    with watched(installed.api, TEAM, JOB) as job:
        try:
            yield Trial(installed, job, out)
        finally:
            (out / "faults-describe.txt").write_text(installed.must("describe", "lorarljob", JOB, "-n", TEAM))
            (out / "faults-events.txt").write_text(
                installed.must("get", "events", "-n", TEAM, "--sort-by=.lastTimestamp")
            )
    installed.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")


def test_a_worker_pod_is_deleted(trial: Trial) -> None:
    with trial.fault("worker deleted", preemptions=1, recovered=True):
        trial.delete_pod("worker")


def test_the_store_is_down_for_a_minute(trial: Trial) -> None:
    """Its container gets an image that is not there, so that the pod and what is in it stay."""
    cluster = trial.cluster
    (pod,) = cluster.api.list("Pod", STORE, "app=s3")
    name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
    with trial.fault("S3 server down for 60 s"), outage(cluster, name, container["image"]):
        time.sleep(OUTAGE_SECONDS)  # the fault itself
        status = trial.job.now.status
        assert status["step"] > status["adapter"]["step"] + 1, "the store was not down"
    wait_available(cluster, STORE, "s3")
    caught_up = trial.job.now.step
    trial.job.until(60, f"step {caught_up} is published", lambda seen: seen.status["adapter"]["step"] >= caught_up)


def test_a_worker_pod_is_evicted(trial: Trial) -> None:
    with trial.fault("worker evicted", preemptions=1, recovered=True):
        pod = trial.job.pod("worker")["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": TEAM}}
        trial.cluster.api.request("POST", f"/api/v1/namespaces/{TEAM}/pods/{pod}/eviction", eviction)
    assert "EvictionByEvictionAPI" in trial.cluster.must("describe", "lorarljob", JOB, "-n", TEAM)


def test_the_api_server_is_down_for_a_minute(trial: Trial, own_node: Node) -> None:
    with trial.fault("kube-apiserver down for 60 s"):
        own_node.stop("kube-apiserver")
        time.sleep(OUTAGE_SECONDS)  # the fault itself
        own_node.start("kube-apiserver")
        until(60, "the API server answers", lambda: own_node.get("/readyz") == "ok")
    wait_for_leaders(trial.cluster)


def test_the_head_pod_is_deleted(trial: Trial) -> None:
    with trial.fault("head deleted", preemptions=1):
        trial.delete_pod("head")


def test_the_operator_is_deleted(trial: Trial) -> None:
    with trial.fault("operator deleted"):
        trial.delete_operator()
    wait_available(trial.cluster, SYSTEM, "lorarl")


def test_the_kubelet_is_restarted(trial: Trial, own_node: Node) -> None:
    before = own_node.running()["kubelet"]
    with trial.fault("kubelet restarted"):
        own_node.stop("kubelet")
        own_node.start("kubelet")
    assert own_node.running()["kubelet"] != before
    wait_available(trial.cluster, STORE, "s3")


def test_operator_and_head_are_deleted(trial: Trial) -> None:
    with trial.fault("operator and head deleted", preemptions=1):
        trial.delete_operator()
        trial.delete_pod("head")
    wait_available(trial.cluster, SYSTEM, "lorarl")


def test_the_worker_runs_out_of_memory(trial: Trial) -> None:
    """A program in the worker's pod takes what is left of its limit; the kernel chooses whom to kill."""
    with trial.fault("worker out of memory", attempts=1):
        pod = trial.job.pod("worker")["metadata"]["name"]
        # It writes a pattern, so that every page is used. The exit code does not show which process was killed.
        trial.cluster.kubectl(
            "exec", pod, "-n", TEAM, "-c", "ray-worker", "--", "python", "-c", "held = b'x' * (5 << 30)"
        )
    told = trial.cluster.must(
        "get", "events", "-n", TEAM, "--field-selector", f"involvedObject.name={JOB},reason=BackingOff", "-o", "yaml"
    )
    assert "ended with OutOfMemory: " in told, told
    assert "memoryPerNode" in told, told


def test_suspended_and_resumed(trial: Trial) -> None:
    """Resumed, it goes through a queue of Kueue's: the label may be set while nothing of it runs. It is to end soon."""
    cluster = trial.cluster
    cluster.must("delete", "clusterqueue,resourceflavor", QUEUE, "--ignore-not-found")
    cluster.must("delete", "localqueue", QUEUE, "-n", TEAM, "--ignore-not-found")
    add_queue(cluster, TEAM, QUEUE, {"cpu": "2", "memory": "10Gi"})
    with trial.fault("suspended and resumed", suspended=True):
        trial.set_spec({"suspend": True})
        trial.phase("Suspended")
        assert not cluster.api.list("Pod", TEAM, f"lorarl.io/job={JOB}")
        cluster.must("label", "lorarljob", JOB, "-n", TEAM, f"{QUEUE_LABEL}={QUEUE}")
        trial.set_spec({"suspend": False, "trainer": {"steps": trial.job.now.step + LAST_STEPS}})


def test_it_succeeds_with_a_good_adapter(trial: Trial, tmp_path: Path) -> None:
    status = trial.job.until(
        START_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
    ).status
    assert (status["attempts"], status["preemptions"], status["restarts"]) == (*trial.counters, sum(trial.counters))
    assert status["step"] == status["totalSteps"] == status["adapter"]["step"]
    with bucket_of(trial.cluster, trial.out) as bucket:
        figures = ADDITION.accuracy(bucket, status["adapter"], tmp_path)
    print(figures)
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ADDITION.least_gain, figures


def wait_for_leaders(cluster: RealCluster) -> None:
    """Return when lorarl, KubeRay and Kueue lead again. Each ended without its Lease, and the kubelet restarts it.

    What befalls the job before is not answered until then, which would count as the next fault's cost.
    """
    asked = datetime.now(UTC)

    def lead() -> bool:
        leases = [lease for namespace in (SYSTEM, KUBERAY, KUEUE) for lease in cluster.api.list("Lease", namespace)]
        return len(leases) == 3 and all(datetime.fromisoformat(lease["spec"]["renewTime"]) > asked for lease in leases)

    until(LEADERS_SECONDS, "all operators lead again", lead)


@contextmanager
def outage(cluster: RealCluster, pod: str, image: str) -> Iterator[None]:
    """The store's container is away, until the block ends."""
    set_image = ("set", "image", f"pod/{pod}", "-n", STORE)
    cluster.must(*set_image, f"versitygw={image}-gone")
    try:
        cluster.must("wait", f"pod/{pod}", "-n", STORE, "--for=condition=Ready=false", "--timeout=20s")
        yield
    finally:
        cluster.must(*set_image, f"versitygw={image}")
