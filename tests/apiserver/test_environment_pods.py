"""A job whose environment plays in further pods of KubeRay's, the loss of which is none of the job's."""

from __future__ import annotations

import json
import re
from typing import Any

from support.cluster import pods
from support.cluster.client import Object
from support.cluster.lorarljobs import lorarljob, phase, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.pods import names
from support.cluster.processes import until

SECONDS = 30.0
JOB: dict[str, Any] = {
    "algorithm": {"type": "grpo", "groupSize": 4},
    "environment": {"function": "game:Dice"},
    "cluster": {
        "gpusPerNode": 1,
        "cpusPerNode": "1",
        "memoryPerNode": "4Gi",
        "environments": {"replicas": 2, "cpus": "500m", "memory": "1Gi"},
    },
    "backoffLimit": 0,
}


def of_role(p: Platform, namespace: str, role: str) -> list[Object]:
    return pods.ready_pods(p.api, namespace, "job-1", role)


def test_each_has_a_pod_without_access_and_its_loss_starts_no_attempt(
    kuberay_platform: Platform, replica: Operator
) -> None:
    p, namespace = kuberay_platform, kuberay_platform.namespace("environments")
    p.api.create(lorarljob(namespace, "job", **JOB))
    p.api.wait("LoRARLJob", "job", namespace, lambda job: phase(job) == "Running", seconds=SECONDS)
    until(SECONDS, "two pods are ready", lambda: len(of_role(p, namespace, "environment")) == 2)
    workers = {"attempt": 1, "pods": sorted(names(of_role(p, namespace, "worker")))}
    report(p.api, namespace, "job", step=1, totalSteps=10, workers=workers)

    job = p.api.get("LoRARLJob", "job", namespace) or {}
    assert job["status"]["gpus"] == 1, "they have none"
    for pod in of_role(p, namespace, "environment"):
        [container] = pod["spec"]["containers"]
        assert container["name"] == "ray-environment"
        assert container["resources"]["limits"] == {"memory": "1Gi"}
        assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1Gi"}
        started = " ".join([*container.get("command", ()), *container["args"]])
        assert re.search(r"ray start .*--num-cpus=0 ", started), started
        [resources] = re.findall(r"--resources='([^']*)'", started)
        assert json.loads(resources) == {"lorarl_environment": 1}
        assert pod["spec"]["serviceAccountName"] == "default"
        assert pod["spec"]["automountServiceAccountToken"] is False
        kinds = {kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"}
        assert kinds == {"configMap", "emptyDir"}, "the manifest, and the pod's own files"

    for lose in (pods.evict, lambda api, pod: api.delete("Pod", pod["metadata"]["name"], namespace)):
        before = names(of_role(p, namespace, "environment"))
        lost = of_role(p, namespace, "environment")[0]
        lose(p.api, lost)

        def is_replaced(lost: Object = lost, before: set[str] = before) -> bool:
            now = names(of_role(p, namespace, "environment"))
            return len(now) == 2 and now != before and lost["metadata"]["name"] not in now

        until(SECONDS, "KubeRay has replaced the pod", is_replaced)

    report(p.api, namespace, "job", step=2, totalSteps=10, workers=workers)
    job = p.api.wait("LoRARLJob", "job", namespace, lambda job: job["status"].get("step") == 2, seconds=SECONDS)
    assert (phase(job), job["status"]["rayJobName"]) == ("Running", "job-1")
    assert (job["status"]["preemptions"], job["status"]["attempts"]) == (0, 0)
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
