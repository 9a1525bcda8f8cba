"""A job with separate engines in a cluster: KubeRay's pods for them, and that the loss of one is none of the job's."""

from __future__ import annotations

import json
import re

from apiserver.engine_job import JOB
from support.cluster import pods
from support.cluster.client import Object
from support.cluster.lorarljobs import condition, lorarljob, phase, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.pods import names
from support.cluster.processes import until

SECONDS = 30.0


def of_role(p: Platform, namespace: str, role: str) -> list[Object]:
    return pods.ready_pods(p.api, namespace, "job-1", role)


def running(p: Platform, namespace: str, **labels: str) -> Object:
    """Start the job, and report what its trainer does when all pods are there."""
    p.api.create(lorarljob(namespace, "job", labels=labels, **JOB))
    p.api.wait("LoRARLJob", "job", namespace, lambda job: phase(job) == "Running", seconds=SECONDS)
    until(SECONDS, "two engines are ready", lambda: len(of_role(p, namespace, "engine")) == 2)
    workers = {"attempt": 1, "pods": sorted(names(of_role(p, namespace, "worker")))}
    report(p.api, namespace, "job", step=1, totalSteps=10, workers=workers)
    return p.api.get("LoRARLJob", "job", namespace) or {}


def test_each_engine_has_a_pod_and_its_loss_starts_no_attempt(kuberay_platform: Platform, replica: Operator) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("engines")
    job = running(p, namespace)
    assert job["status"]["gpus"] == 3
    trainer, engines = of_role(p, namespace, "worker"), of_role(p, namespace, "engine")
    assert len(trainer) == 1
    for pod in engines:
        [container] = pod["spec"]["containers"]
        assert container["name"] == "ray-engine"
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        started = " ".join([*container.get("command", ()), *container["args"]])
        assert re.search(r"ray start .*--num-cpus=0 ", started) and "--num-gpus=1" in started, started
        [resources] = re.findall(r"--resources='([^']*)'", started)
        assert json.loads(resources) == {"lorarl_engine": 1}
    assert "--resources" not in " ".join(trainer[0]["spec"]["containers"][0]["args"])

    for lose in (pods.evict, lambda api, pod: api.delete("Pod", pod["metadata"]["name"], namespace)):
        before = names(of_role(p, namespace, "engine"))
        lost = of_role(p, namespace, "engine")[0]
        lose(p.api, lost)

        def is_replaced(lost: Object = lost, before: set[str] = before) -> bool:
            now = names(of_role(p, namespace, "engine"))
            return len(now) == 2 and now != before and lost["metadata"]["name"] not in now

        until(SECONDS, "KubeRay has replaced the pod", is_replaced)

    # A worker's loss is one still. When the operator has counted it, it has seen what became of the engines.
    p.api.delete("Pod", trainer[0]["metadata"]["name"], namespace)
    job = p.api.wait(
        "LoRARLJob",
        "job",
        namespace,
        lambda job: condition(job, "Running").get("reason") == "Recovering",
        seconds=SECONDS,
    )
    status = job["status"]
    assert (phase(job), status["rayJobName"]) == ("Running", "job-1")
    assert (status["preemptions"], status["attempts"], status.get("recoveries", 0)) == (1, 0, 0)
    assert trainer[0]["metadata"]["name"] in condition(job, "Running")["message"]
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
