"""The cluster that the other tests of this tier work in is one: ours, or that of KUBECONFIG."""

from __future__ import annotations

from support.cluster.kubectl import RealCluster


def test_its_nodes_are_ready_and_we_may_do_anything(cluster: RealCluster) -> None:
    nodes = cluster.api.list("Node")
    assert nodes
    for node in nodes:
        assert any(condition["type"] == "Ready" and condition["status"] == "True" for condition in node["status"]["conditions"])
    assert cluster.must("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
