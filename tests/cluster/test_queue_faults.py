"""One job in a queue takes what befalls jobs at a site, while another job waits for its quota.

It keeps the quota where it should, loses a step at most, and says the right reason. `test_faults.py` has the faults
that need no queue.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.kueue import install_kueue, small_job
from node import builds
from node.installation import (
    STORE_KEYS,
    SYSTEM,
    Images,
    apply,
    install_lorarl,
    make_room,
    upgrade_lorarl,
    wait_available,
)
from node.node import Node
from node.second import lose, second_node
from node.settings import NODE, SECOND_NODE
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.kueue import QUEUE_LABEL, add_priority_class, add_queue, workload_of
from support.cluster.lorarljobs import condition
from support.cluster.processes import until
from support.helm import helm
from support.previous_version import previous_version
from support.real_cluster.example import ADDITION, run
from support.real_cluster.store import bucket_of
from support.real_cluster.trial import START_SECONDS, Trial
from support.real_cluster.watched import watched

pytestmark = pytest.mark.long

TEAM, OTHER_TEAM = "queueing", "queueing-too"
JOB, COMPETITOR, SMALL = "holds", "waits", "small"
QUEUE = "room-for-one"
QUOTA = {"cpu": "2", "memory": "10Gi", "ephemeral-storage": "5Gi"}
MORE_THAN_IT_WILL_MAKE = 2000
LAST_STEPS = 15
STALLS_AFTER = 90
STOP = """
import psutil, signal
(worker,) = [one for one in psutil.process_iter() if "".join(one.cmdline()).startswith("ray::CheckpointingWorker")]
worker.send_signal(signal.SIGSTOP)
"""
OLDER_OPERATOR = "docker.io/lorarl/operator:previous"
TOLD_SECONDS = 60.0
GONE_SECONDS = 20.0
"""Less than the grace period, which a head took that was deleted before its dashboard answered."""
LOST_SECONDS = 240.0
"""Kubernetes misses a node after 50 s, and its pods leave it 60 s later, with their grace period."""
EVICTED_SECONDS = 150.0
"""The kubelet measures volumes once in a minute, and then looks for those to evict every 10 s."""


@pytest.fixture(scope="module")
def store_folder() -> str:
    return f"s3://lorarl/queue-faults-{time.time():.0f}"


@pytest.fixture(scope="module")
def trial(installed: RealCluster, out: Path, store_folder: str) -> Iterator[Trial]:
    """The example's job as it trains in a queue with room for one, and another job that waits there."""
    cluster = installed
    install_kueue(cluster)
    with bucket_of(cluster, out) as bucket:
        ADDITION.upload(bucket)
    for team in (TEAM, OTHER_TEAM):
        make_room(cluster, team)
    cluster.must("delete", "clusterqueue,resourceflavor", QUEUE, "--ignore-not-found")
    cluster.must("delete", "localqueue", QUEUE, "-n", TEAM, "--ignore-not-found")
    add_queue(cluster, TEAM, QUEUE, QUOTA)
    changes = {
        "trainer.steps": MORE_THAN_IT_WILL_MAKE,
        "checkpoint.uri": store_folder,
        "data.eval.every": MORE_THAN_IT_WILL_MAKE,
        "cluster.diskPerNode": "1Gi",
        "cluster.terminationGracePeriodSeconds": 30,
        "progressDeadlineSeconds": STALLS_AFTER,
    }
    apply(cluster, queued(JOB, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as job:
        try:
            job.until(START_SECONDS, "a step", lambda seen: seen.step > 0)
            apply(cluster, queued(COMPETITOR, changes), namespace=TEAM)
            yield Trial(cluster, job, out)
        finally:
            (out / "queue-faults-describe.txt").write_text(cluster.must("describe", "lorarljobs", "-n", TEAM))
            (out / "queue-faults-events.txt").write_text(
                cluster.must("get", "events", "-n", TEAM, "--sort-by=.lastTimestamp")
            )
            cluster.must("delete", "lorarljobs", "--all", "-n", TEAM, "--wait")


def queued(name: str, changes: Object) -> Object:
    job = ADDITION.manifest(name, changes)
    job["metadata"]["labels"] = {QUEUE_LABEL: QUEUE}
    return job


@contextmanager
def quota_kept(trial: Trial) -> Iterator[None]:
    """What befalls the job in this block costs neither its quota nor its place, and its competitor still waits."""
    wait_for_competitor(trial)
    before = workload(trial)
    yield
    assert workload(trial) == before, "one Workload, admitted once"
    assert reason(trial, COMPETITOR) == "Queued"


def workload(trial: Trial) -> tuple[str, str]:
    """The uid of the Workload of the job's RayJob, and when Kueue admitted it."""
    return workload_of(trial.cluster.api, TEAM, trial.job.now.status["rayJobName"])


@contextmanager
def given_back(trial: Trial, image: str) -> Iterator[None]:
    """After what befalls the job in this block, a small job of somebody else has its turn before the next attempt.

    The competitor would have it first, and never end.
    """
    trial.cluster.must("delete", "lorarljob", COMPETITOR, "-n", TEAM, "--ignore-not-found", "--wait")
    apply(trial.cluster, small_job(SMALL, image, QUEUE), namespace=TEAM)
    job_of_another(trial, "Suspended")
    yield
    job_of_another(trial, "Complete")
    trial.cluster.must("delete", "job", SMALL, "-n", TEAM)


def job_of_another(trial: Trial, state: str) -> None:
    trial.cluster.must("wait", f"job/{SMALL}", "-n", TEAM, f"--for=condition={state}", "--timeout=55s")


def wait_for_competitor(trial: Trial) -> None:
    until(TOLD_SECONDS, f"{COMPETITOR} waits in the queue", lambda: reason(trial, COMPETITOR) == "Queued")


def reason(trial: Trial, name: str) -> str:
    return str(condition(trial.cluster.api.get("LoRARLJob", name, TEAM) or {}, "Running").get("reason", ""))


def test_a_worker_pod_is_deleted(trial: Trial) -> None:
    with quota_kept(trial), trial.fault("queue: worker deleted", preemptions=1, recovered=True):
        trial.delete_pod("worker")
    assert "PodDeleted" in trial.cluster.must("get", "events", "-n", TEAM, "-o", "yaml")


def test_the_head_pod_is_deleted(trial: Trial) -> None:
    """With the driver: everything starts again, but in the same RayJob."""
    with quota_kept(trial), trial.fault("queue: head deleted", preemptions=1):
        trial.delete_pod("head")


def test_operator_and_head_are_deleted(trial: Trial) -> None:
    """KubeRay starts the RayJob again before an operator is back, which counts the loss all the same."""
    with quota_kept(trial), trial.fault("queue: operator and head deleted", preemptions=1):
        trial.delete_operator()
        trial.delete_pod("head")


def test_a_node_is_drained(trial: Trial) -> None:
    """By kubectl, which cordons it. The worker's replacement has no node until another is there: here, the same one."""
    cluster = trial.cluster
    pod = trial.job.pod("worker")
    node = pod["spec"]["nodeName"]
    with quota_kept(trial), trial.fault("queue: node drained", preemptions=1, recovered=True), cordoned(cluster, node):
        worker = f"--pod-selector=lorarl.io/job={JOB},lorarl.io/role=worker"
        cluster.must("drain", node, worker, "--delete-emptydir-data", "--force", "--timeout=50s")
        trial.job.until(TOLD_SECONDS, "the wait for a node is told", lambda _: "unschedulable" in message(trial))
        assert reason(trial, JOB) == "Recovering"
    assert "EvictionByEvictionAPI" in cluster.must("describe", "lorarljob", JOB, "-n", TEAM)


def message(trial: Trial) -> str:
    return str(condition({"status": trial.job.now.status}, "Running").get("message", ""))


def test_a_node_is_lost_with_the_head(trial: Trial, own_node: Node, images: Images) -> None:
    """And with the worker. Its kubelet is gone too, so nothing ever says that their pods have ended."""
    cluster = trial.cluster
    with second_node(own_node, [images.trainer]):
        moved = trial.fault("queue: all pods move to another node", preemptions=1)
        with quota_kept(trial), moved, cordoned(cluster, NODE):
            trial.delete_pod("head")
            until(TOLD_SECONDS, "both pods are on the other node", lambda: nodes(trial) == [SECOND_NODE] * 2)
        with quota_kept(trial), trial.fault("queue: node lost with the head", preemptions=1):
            before = trial.job.now.counters[1]
            lose(own_node)
            trial.job.until(LOST_SECONDS, "the loss is counted", lambda seen: seen.counters[1] == before + 1)
        assert nodes(trial) == [NODE] * 2
    (fault,) = trial.job.now.status["faultyNodes"]
    assert (fault["name"], fault["attempts"], fault["reason"]) == (SECOND_NODE, 1, "DeletionByTaintManager")


@contextmanager
def cordoned(cluster: RealCluster, node: str) -> Iterator[None]:
    cluster.must("cordon", node)
    try:
        yield
    finally:
        cluster.must("uncordon", node)


def nodes(trial: Trial) -> list[str]:
    """The nodes of the job's pods that are not about to go."""
    pods = [pod for pod in trial.pods() if "deletionTimestamp" not in pod["metadata"]]
    return [pod["spec"].get("nodeName", "") for pod in pods]


def test_the_operator_is_rolled_back_while_the_job_starts_again(
    trial: Trial, own_node: Node, images: Images, tmp_path: Path
) -> None:
    """To a version that does not know restarts in place, as docs/operator.md says, and forward again."""
    cluster = trial.cluster
    with previous_version(tmp_path / "tree") as tree:
        builds.build_operator_of(tree, OLDER_OPERATOR, own_node.settings)
        with quota_kept(trial), trial.fault("queue: operator rolled back in a restart", preemptions=1):
            trial.delete_pod("head")
            trial.job.until(TOLD_SECONDS, "it starts again", lambda seen: seen.status["phase"] == "Restarting")
            upgrade_lorarl(cluster, OLDER_OPERATOR, images.trainer, tree / "helm/lorarl")
        assert operators(cluster) == {OLDER_OPERATOR}
        with quota_kept(trial), trial.fault("queue: operator upgraded again"):
            upgrade_lorarl(cluster, images.operator, images.trainer)
            wait_available(cluster, SYSTEM, "lorarl")


def test_the_operator_is_upgraded_and_rolled_back(trial: Trial, own_node: Node, images: Images) -> None:
    """By helm, in mid-run. The next version is the same image under another name."""
    cluster, status = trial.cluster, trial.job.now.status
    own_node.ctr("images", "tag", "--force", images.operator, f"{images.operator}-next")
    with quota_kept(trial), trial.fault("operator upgraded"):
        install_lorarl(cluster, f"{images.operator}-next", images.trainer)
        wait_available(cluster, SYSTEM, "lorarl")
    assert operators(cluster) == {f"{images.operator}-next"}
    with quota_kept(trial), trial.fault("operator rolled back"):
        done = helm("rollback", "lorarl", "-n", SYSTEM, "--wait", "--timeout", "300s", kubeconfig=cluster.kubeconfig)
        assert done.returncode == 0, done.stderr
        wait_available(cluster, SYSTEM, "lorarl")
    until(TOLD_SECONDS, "only the older operator is left", lambda: operators(cluster) == {images.operator})
    after = trial.job.now.status
    assert (after["rayJobName"], after["restarts"]) == (status["rayJobName"], status["restarts"])
    trial.set_spec({"trainer": {"steps": MORE_THAN_IT_WILL_MAKE + 1}})
    trial.job.until(TOLD_SECONDS, "the operator that leads now passes on a change", total_steps_are_one_more)


def total_steps_are_one_more(seen: object) -> bool:
    return getattr(seen, "status", {}).get("totalSteps") == MORE_THAN_IT_WILL_MAKE + 1


def operators(cluster: RealCluster) -> set[str]:
    """The images of the operator's pods."""
    pods = cluster.api.list("Pod", SYSTEM, "app.kubernetes.io/component=operator")
    return {pod["spec"]["containers"][0]["image"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}


def test_the_same_manifest_in_another_namespace(trial: Trial, store_folder: str) -> None:
    """Both would write to one folder of the bucket. The second is refused and says whose it is; the first continues."""
    cluster = trial.cluster
    with quota_kept(trial), trial.fault("the same job in another namespace"):
        # KubeRay's submitter asks for half a CPU in the other mode, and the node has two.
        little = {
            "cluster.submissionMode": "HTTPMode",
            "cluster.cpusPerNode": "100m",
            "cluster.head": {"cpus": "200m", "memory": "3Gi"},
        }
        apply(cluster, ADDITION.manifest(JOB, {"checkpoint.uri": store_folder, **little}), namespace=OTHER_TEAM)
        with watched(cluster.api, OTHER_TEAM, JOB) as second:
            until(START_SECONDS, "the second has failed", lambda: second.ended)
            status = second.now.status
        cluster.must("delete", "lorarljob", JOB, "-n", OTHER_TEAM, "--wait")
    failed = condition({"status": status}, "Failed")
    assert (status["phase"], failed["reason"]) == ("Failed", "InvalidInput"), status
    assert f"belongs to job {JOB} in namespace {TEAM}" in failed["message"]
    assert status.get("step", 0) == 0, "it has trained nothing"
    ended = cluster.must("get", "events", "-n", OTHER_TEAM, "-o", "yaml")
    assert "InvalidInput: " not in ended, "it is not tried again"


def test_a_job_of_higher_priority_preempts_it(trial: Trial, images: Images) -> None:
    """It gets the machines, and then the preempted job has them again: it was there before the one that waits."""
    cluster = trial.cluster
    add_priority_class(cluster, "urgent", 1000)
    wait_for_competitor(trial)
    uid, _ = workload(trial)
    with trial.fault("queue: preempted by Kueue", preemptions=1):
        apply(cluster, small_job(SMALL, images.trainer, QUEUE, "urgent"), namespace=TEAM)
        job_of_another(trial, "Complete")
    assert workload(trial)[0] == uid
    assert reason(trial, COMPETITOR) == "Queued"
    cluster.must("delete", "job", SMALL, "-n", TEAM)


def test_the_competitor_gets_what_the_job_gives_back(trial: Trial) -> None:
    """Suspended, the job gives its quota to the job that waits. It gets it again when that one has gone."""
    with trial.fault("queue: suspended for the other", suspended=True):
        trial.set_spec({"suspend": True})
        trial.phase("Suspended")
        until(TOLD_SECONDS, f"{COMPETITOR} has the quota", lambda: reason(trial, COMPETITOR) not in ("", "Queued"))
        trial.set_spec({"suspend": False})
        until(TOLD_SECONDS, f"{JOB} waits", lambda: reason(trial, JOB) == "Queued")
        trial.cluster.must("delete", "lorarljob", COMPETITOR, "-n", TEAM, "--wait")
        left = "pods that only started have left their machines"
        its_pods = f"lorarl.io/job={COMPETITOR}"
        until(GONE_SECONDS, left, lambda: not trial.cluster.api.list("Pod", TEAM, its_pods), patience=1)


def test_the_cache_fills_the_disk(trial: Trial, images: Images) -> None:
    """More than cluster.diskPerNode: the kubelet evicts the pod, and that is the job's own fault."""
    cluster = trial.cluster
    with given_back(trial, images.trainer), trial.fault("disk filled by the cache", attempts=1):
        pod = trial.job.pod("worker")["metadata"]["name"]
        before = trial.job.now.counters[0]
        fill = "with open('/var/cache/lorarl/filled', 'wb') as file: [file.write(bytes(1 << 20)) for _ in range(1300)]"
        cluster.must("exec", pod, "-n", TEAM, "-c", "ray-worker", "--", "python", "-c", fill)
        trial.job.until(EVICTED_SECONDS, "the pod is evicted", lambda seen: seen.counters[0] == before + 1)
    told = backing_off(trial)
    assert "DiskFull: " in told, told
    assert "Raise cluster.diskPerNode" in told, told


def test_the_training_hangs(trial: Trial, images: Images, store_folder: str) -> None:
    """The worker's process is stopped, and nothing ends by itself. The record says where driver and worker stand."""
    cluster = trial.cluster
    with given_back(trial, images.trainer), trial.fault("training hangs", attempts=1):
        pod = trial.job.pod("worker")["metadata"]["name"]
        before, record = trial.job.now.counters[0], trial.job.now.status["record"]
        cluster.must("exec", pod, "-n", TEAM, "-c", "ray-worker", "--", "python", "-c", STOP)
        trial.job.until(STALLS_AFTER * 2, "the hang is noticed", lambda seen: seen.counters[0] == before + 1)
        trial.set_spec({"trainer": {"steps": trial.job.now.step + LAST_STEPS}})  # the next attempt begins with it
    told = backing_off(trial)
    assert "Stalled: " in told, told
    assert f"progressDeadlineSeconds, {STALLS_AFTER} s, since step" in told, told
    with bucket_of(cluster, trial.out) as bucket:
        of_worker, of_driver = (bucket.read(f"{record}/logs/stack-{one}.log") for one in ("0", "driver"))
    assert f"of progressDeadlineSeconds, {STALLS_AFTER} s" in of_worker
    assert "state: T (stopped)" in of_worker, of_worker
    assert "lorarl_trainer/launch/watchdog.py" in of_driver, of_driver


def backing_off(trial: Trial) -> str:
    """The Events that say why attempts ended, one on a line."""
    about = f"involvedObject.name={JOB},reason=BackingOff"
    return "\n".join(event["message"] for event in trial.cluster.api.list("Event", TEAM, fields=about))


def test_it_succeeds(trial: Trial) -> None:
    status = trial.job.until(
        START_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
    ).status
    assert (status["attempts"], status["preemptions"]) == trial.counters
    assert status["step"] == status["totalSteps"] == status["adapter"]["step"]
    print(json.dumps({name: cost.seconds for name, cost in trial.costs.items()}))


def test_its_record_tells_all_when_the_cluster_is_gone(trial: Trial, store_folder: str, tmp_path: Path) -> None:
    """Nothing is asked but the bucket: there is no kubectl, and no job."""
    cluster, steps = trial.cluster, trial.job.now.step
    cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")
    record = ("--record", f"{store_folder}/{JOB}")
    with bucket_of(cluster, trial.out) as bucket:
        alone = {
            **STORE_KEYS,
            "AWS_ENDPOINT_URL": bucket.url,
            "PATH": str(tmp_path),
            "KUBECONFIG": str(tmp_path / "no"),
        }

        def told(command: str, *more: str) -> str:
            return run([sys.executable, "-m", "lorarl_trainer.cli.kubectl", command, *record, *more], alone)

        runs = [line for line in told("why").splitlines() if line.startswith("00")]
        assert len(runs) > trial.restarts > 0, runs
        assert f"to {steps}" in runs[-1] and "succeeded" in runs[-1], runs
        assert "resum" in told("logs"), "of the newest run"
        assert told("logs", "--run", "1").strip()
        page = trial.out / "compare.html"
        assert f"{steps} of {steps}" in told("compare", *record, "--page", str(page)), "all runs are one"
