"""The operator as a process, with the chart's permissions and the real KubeRay: a job from its creation to its end."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lorarl_operator.control.cache import WATCHED
from support.cluster import pods
from support.cluster.audit import account, writes
from support.cluster.lorarljobs import condition, events, lorarljob, phase, report, wait_event
from support.cluster.operator import ACCOUNT, SYSTEM, Operator, quiet
from support.cluster.platform import Platform
from support.cluster.processes import until

OPERATOR = account(SYSTEM, ACCOUNT)


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform) -> Platform:
    return kuberay_platform


def row(p: Platform, namespace: str, *arguments: str) -> dict[str, str]:
    """The line that `kubectl get lrj` prints, by its headers."""
    header, line = p.cluster.must("get", "lrj", "-n", namespace, *arguments).splitlines()
    starts = [header.index(word) for word in header.split()] + [None]
    return {header[start:end].strip(): line[start:end].strip() for start, end in pairwise(starts)}


def test_from_creation_to_end_in_twelve_writes(p: Platform, replica: Operator) -> None:
    namespace, errors = p.namespace("life"), replica.metric("lorarl_operator_errors_total")
    p.api.create(lorarljob(namespace, "whole"))
    job = p.api.wait("LoRARLJob", "whole", namespace, lambda job: phase(job) == "Running", seconds=30)
    assert job["status"]["rayJobName"] == "whole-1"
    assert job["status"]["dashboardURL"].startswith("http://")
    assert job["status"]["observedGeneration"] == 1
    assert condition(job, "Running") | {"lastTransitionTime": ""} == {
        "type": "Running",
        "status": "True",
        "reason": "Running",
        "message": "Attempt 1 is training in RayJob whole-1.",
        "observedGeneration": 1,
        "lastTransitionTime": "",
    }
    assert not job["metadata"].get("annotations"), "the operator leaves no annotation on the object"
    assert not job["metadata"].get("finalizers")

    report(
        p.api,
        namespace,
        "whole",
        step=3,
        totalSteps=10,
        progress="3/10",
        metrics={"reward": 0.75, "tokensPerSecond": 1200.5},
        adapter=ADAPTER,
    )
    shown = row(p, namespace, "-o", "wide")
    assert (shown["NAME"], shown["PHASE"], shown["STEP"], shown["REWARD"]) == ("whole", "Running", "3/10", "0.75")
    assert (shown["RAYJOB"], shown["RESTARTS"], shown["URI"]) == ("whole-1", "0", ADAPTER["uri"])
    until(10, "the step is in the metrics", lambda: replica.metric("lorarl_job_step", job_name="whole") == 3)
    assert replica.metric("lorarl_job_tokens_per_second", job_name="whole") == 1200.5

    p.finish(namespace, "whole-1", "SUCCEEDED")
    done = p.api.wait("LoRARLJob", "whole", namespace, lambda job: phase(job) == "Succeeded", seconds=30)
    until(10, "its workers are gone", lambda: not p.pods(namespace, "whole-1", pods.WORKER))
    assert len(p.pods(namespace, "whole-1", pods.HEAD)) == 1, "the head stays for its logs"
    assert condition(done, "Complete")["status"] == "True"
    assert condition(done, "Running")["status"] == "False"
    assert done["status"]["step"] == 3, "the operator does not touch the trainer's part"
    assert done["status"]["completionTime"] >= done["status"]["startTime"]
    for phase_, names in (("Succeeded", "lorarljob.lorarl.io/whole\n"), ("Running", "")):
        assert (
            p.cluster.must("get", "lrj", "-n", namespace, f"--field-selector=status.phase={phase_}", "-o=name") == names
        )
    p.cluster.must("wait", "--for=condition=Complete", "lrj/whole", "-n", namespace, "--timeout=5s")

    written = writes(p.cluster.audit_log, OPERATOR, namespace)
    assert len(written) <= 12, written
    assert sorted(one for one in written if "status" not in one) == [
        "create configmaps lorarl-whole",
        "create networkpolicies lorarl-whole",
        "create rayjobs whole-1",
        "create rolebindings lorarl-whole",
        "create roles lorarl-whole",
        "create serviceaccounts lorarl-whole",
    ]
    wait_event(p.api, namespace, "whole", "Succeeded")
    transitions = ("Starting", "Running", "Succeeded")
    assert [(e["type"], e["reason"]) for e in events(p.api, namespace, "whole") if e["reason"] in transitions] == [
        ("Normal", "Starting"),
        ("Normal", "Running"),
        ("Normal", "Succeeded"),
    ]
    described = p.cluster.must("describe", "lrj", "whole", "-n", namespace)
    assert "Training finished in attempt 1." in described
    assert replica.metric("lorarl_operator_errors_total") == errors
    p.api.delete("LoRARLJob", "whole", namespace)


ADAPTER = {"uri": "s3://team/adapters/whole/iter_0000003/lora_adapter", "step": 3, "version": 4}


def test_a_jobs_pods_know_their_cluster_by_what_outlives_its_certificates(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("cluster")
    p.api.create(lorarljob(namespace, "known"))
    made = p.api.wait("RayJob", "known-1", namespace, bool)
    system = p.api.get("Namespace", "kube-system")
    assert system is not None
    cluster = made["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        env = group["template"]["spec"]["containers"][0]["env"]
        assert {"name": "LORARL_CLUSTER", "value": system["metadata"]["uid"]} in env
    p.api.delete("LoRARLJob", "known", namespace)


def test_nothing_is_written_while_nothing_changes(p: Platform, replica: Operator) -> None:
    namespace = p.namespace("calm")
    p.api.create(lorarljob(namespace, "calm"))
    p.api.create(lorarljob(namespace, "stuck", cluster={"gpusPerNode": 64}))
    p.api.wait("LoRARLJob", "calm", namespace, lambda job: phase(job) == "Running", seconds=30)
    p.api.wait(
        "LoRARLJob",
        "stuck",
        namespace,
        lambda job: condition(job, "Running").get("reason") == "Unschedulable",
        seconds=30,
    )
    # This waits for 12 s without a write, and fails after a minute.
    quiet(12, lambda: len(writes(p.cluster.audit_log, OPERATOR, namespace)))
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)


def test_probes_and_metrics(replica: Operator) -> None:
    assert replica.probe("/healthz") == (200, "ok\n")
    until(30, "it has listed all", lambda: replica.probe("/readyz") == (200, "ok\n"))
    assert replica.probe("/nothing")[0] == 404
    until(30, "all is watched", lambda: replica.metric("lorarl_operator_watches") == len(WATCHED))
    assert replica.resident_bytes < 150e6
