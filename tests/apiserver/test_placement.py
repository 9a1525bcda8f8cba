"""Where the real scheduler puts head and workers: on nodes of the sizes in examples/gsm8k-kubernetes.yaml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.cluster import pods
from support.cluster.client import Object
from support.cluster.crds import CRD
from support.cluster.kwok import DEVICE_CLASS, add_devices, add_node
from support.cluster.lorarljobs import condition, lorarljob
from support.cluster.operator import operator, prepare, wait_leader
from support.cluster.platform import Platform, platform
from support.cluster.processes import until
from support.cluster.tools import tools_or_skip

WHOLE_NODE = {"gpusPerNode": 8, "cpusPerNode": 64, "memoryPerNode": "512Gi"}


@pytest.fixture(scope="module")
def p(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform with one GPU node, and a smaller node without GPUs."""
    with tools_or_skip(), platform(tmp_path_factory.mktemp("placement"), crds=[CRD], nodes=0) as running:
        add_node(running.cluster, "gpu-node", gpus=8, cpus=64, memory="512Gi")
        add_node(running.cluster, "cpu-node", cpus=44, memory="128Gi")
        running.api.patch("Node", "gpu-node", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
        with operator(running.cluster, prepare(running.cluster)) as one:
            wait_leader(one)
            yield running


@pytest.mark.parametrize("tainted", [False, True])
def test_the_head_leaves_the_gpu_node_to_its_worker(p: Platform, tainted: bool) -> None:
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    p.api.patch("Node", "gpu-node", {"spec": {"taints": [taint] if tainted else []}})
    namespace = p.namespace("placed")
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    p.api.create(lorarljob(namespace, "whole", cluster=WHOLE_NODE | {"tolerations": tolerations}))

    def node_of(role: str) -> str:
        (pod,) = until(20, f"a {role} with a node", lambda: placed(p.pods(namespace, "whole-1", role)))
        name: str = pod["spec"]["nodeName"]
        return name

    assert (node_of(pods.HEAD), node_of(pods.WORKER)) == ("cpu-node", "gpu-node")
    p.api.delete("LoRARLJob", "whole", namespace)
    until(20, "its pods are gone", lambda: not p.api.list("Pod", namespace))
    p.api.patch("Node", "gpu-node", {"spec": {"taints": []}})


def test_a_worker_gets_the_devices_that_it_claims(p: Platform) -> None:
    """Two of the node's three devices, so that a second job waits and says for what."""
    add_devices(p.cluster, "gpu-node", 3)
    namespace = p.namespace("claims")
    claim = {"gpusPerNode": 2, "gpuClaim": {"deviceClass": DEVICE_CLASS}}
    p.api.create(lorarljob(namespace, "first", cluster=claim))
    (worker,) = until(20, "a worker with a node", lambda: placed(p.pods(namespace, "first-1", pods.WORKER)))
    assert worker["spec"]["nodeName"] == "gpu-node"
    (owned,) = p.api.list("ResourceClaim", namespace)
    assert len(owned["status"]["allocation"]["devices"]["results"]) == 2
    p.wait_running(namespace, "first-1")

    p.api.create(lorarljob(namespace, "second", cluster=claim))

    def waits(job: Object) -> bool:
        return condition(job, "Running").get("reason") == "Unschedulable"

    job = p.api.wait("LoRARLJob", "second", namespace, waits, seconds=30)
    assert "cannot allocate all claims" in condition(job, "Running")["message"]
    p.cluster.must("delete", "lrj", "--all", "-n", namespace)
    # Claims are deleted with their pods, and the template with its job.
    until(20, "no claim is left", lambda: not p.api.list("ResourceClaim", namespace))
    until(20, "no template is left", lambda: not p.api.list("ResourceClaimTemplate", namespace))


def placed(found: list[Object]) -> list[Object]:
    return [pod for pod in found if pod["spec"].get("nodeName")]
