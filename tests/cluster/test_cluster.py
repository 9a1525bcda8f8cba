"""The cluster that the other tests of this tier work in is one: ours, or that of KUBECONFIG."""

from __future__ import annotations

import json

from node.node import Node
from support.cluster.client import is_ready
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until

READY_SECONDS = 60.0


def test_its_nodes_are_ready_and_we_may_do_anything(cluster: RealCluster) -> None:
    nodes = cluster.api.list("Node")
    assert nodes
    assert all(is_ready(node) for node in nodes)
    assert cluster.must("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"


def test_it_comes_back_when_its_programs_do(own_node: Node, cluster: RealCluster) -> None:
    """The API server and kubelet of our own node are stopped and started again, as tests of faults will."""
    before = own_node.running()
    own_node.stop("kube-apiserver")
    assert cluster.kubectl("get", "nodes").returncode != 0
    own_node.start("kube-apiserver")
    until(READY_SECONDS, "the API server answers", lambda: cluster.kubectl("get", "nodes").returncode == 0)
    own_node.stop("kubelet")
    own_node.start("kubelet")
    assert {name for name, pid in own_node.running().items() if pid != before[name]} >= {"kube-apiserver", "kubelet"}
    for node in cluster.api.list("Node"):
        name = node["metadata"]["name"]
        # The node's own word is from before. It may be as old as the kubelet's lease.
        until(READY_SECONDS, "the kubelet knows its pods", lambda name=name: _knows_its_pods(cluster, name))
        cluster.api.wait("Node", name, None, is_ready, seconds=READY_SECONDS)


def _knows_its_pods(cluster: RealCluster, node: str) -> bool:
    """Whether the kubelet of a node knows all pods that the API server has there."""
    answer = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node}/proxy/pods")
    there = [pod for pod in cluster.api.list("Pod") if pod["spec"].get("nodeName") == node]
    return answer.returncode == 0 and len(json.loads(answer.stdout)["items"] or ()) >= len(there)
