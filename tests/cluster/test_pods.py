"""What a user expects of a node: pods find each other, kubectl reaches them, rights and pod security are enforced."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import hello
from cluster.skipping import up_or_skip
from node.node import Node
from node.settings import Settings
from support.cluster.client import is_ready
from support.cluster.kubectl import RealCluster, real_cluster
from support.cluster.processes import free_ports, listens, running, until

POD_SECONDS = 30.0


@pytest.fixture(scope="module")
def node(spare: Settings) -> Node:
    node = up_or_skip(spare)
    hello.load(node)
    return node


@pytest.fixture(scope="module")
def here(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """The node as a cluster, with two pods that answer."""
    with real_cluster(node.settings.kubeconfig, tmp_path_factory.mktemp("pods")) as cluster:
        for name in ("one", "two"):
            cluster.api.create(hello.pod(name))
            cluster.api.create(hello.service(name))
        for name in ("one", "two"):
            cluster.api.wait("Pod", name, "default", is_ready, seconds=POD_SECONDS)
        for name in ("one", "two"):  # kube-proxy learns of a ready pod a moment later
            until(
                POD_SECONDS,
                f"the Service {name} has its pod",
                lambda n=name: _hello(cluster, "one", f"{n}.default").returncode == 0,
            )
        yield cluster


def test_pods_find_each_other_by_their_services_names(here: RealCluster) -> None:
    for name in ("two", "two.default", "two.default.svc.cluster.local"):
        assert _hello(here, "one", name).stdout == "hello from two\n"
    # A pod reaches itself through its Service (`one` alone would be its own host name).
    assert _hello(here, "one", "one.default").stdout == "hello from one\n"


def test_logs_and_exec_and_port_forward(here: RealCluster, tmp_path: Path) -> None:
    assert "serving on :8080" in here.must("logs", "one")
    assert "unknown command" in here.kubectl("exec", "one", "--", "/hello", "nonsense", "here").stderr
    (port,) = free_ports(1)
    with running(
        [*here.kubectl_command, "port-forward", "service/one", f"{port}:80"], tmp_path / "port-forward.log"
    ) as forward:
        until(POD_SECONDS, "port-forward listens", lambda: listens(port), forward)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.read() == b"hello from one\n"


def test_a_node_port_is_reached_from_the_host(node: Node, here: RealCluster) -> None:
    here.api.patch("Service", "two", {"spec": {"type": "NodePort"}}, "default")
    service = here.api.wait("Service", "two", "default", lambda service: service["spec"]["ports"][0].get("nodePort"))
    url = f"http://{node.settings.node_address}:{service['spec']['ports'][0]['nodePort']}/"

    def probe() -> bytes | None:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bytes(answer.read())
        except OSError:
            return None  # kube-proxy has not seen it yet

    assert until(POD_SECONDS, "the NodePort answers", probe) == b"hello from two\n"


def test_pods_have_no_way_out(node: Node, here: RealCluster) -> None:
    """Neither to the host nor beyond: test traffic stays in the node."""
    refused = _hello(here, "one", "192.0.2.1")
    assert refused.returncode != 0
    assert "no route to host" in refused.stderr or "prohibited" in refused.stderr or "unreachable" in refused.stderr
    assert _hello(here, "one", str(node.settings.host_address)).returncode != 0
    assert "no such host" in _hello(here, "one", "example.com").stderr


def test_rights_are_enforced(node: Node, here: RealCluster) -> None:
    nobody = ("auth", "can-i", "--as=system:serviceaccount:default:default")
    assert here.kubectl(*nobody, "list", "secrets").stdout.strip() == "no"
    # The node may read the Secrets of its own pods alone, and change no other node.
    kubelet = [*here.kubectl_command[:1], f"--kubeconfig={node.settings.run}/kubelet.kubeconfig"]
    assert b"Forbidden" in subprocess.run([*kubelet, "get", "secrets", "-A"], capture_output=True).stderr
    other = subprocess.run([*kubelet, "label", "node", "node-1", "a=b"], capture_output=True).stderr
    assert b"Forbidden" in other or b"forbidden" in other
    # `admin` and `edit` are put together from the roles that say so.
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "more-for-edit", "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get"]}],
    }
    here.api.create(role)
    here.api.wait("ClusterRole", "edit", None, lambda edit: role["rules"][0] in edit["rules"])


def test_pod_security_is_enforced(here: RealCluster) -> None:
    here.api.create(
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "restricted", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
        }
    )
    here.api.wait("ServiceAccount", "default", "restricted", bool)
    loose = {**hello.pod("loose"), "metadata": {"name": "loose", "namespace": "restricted"}}
    refused = here.kubectl("apply", "-f", "-", stdin=json.dumps(loose))
    assert 'violates PodSecurity "restricted' in refused.stderr


def test_a_container_that_needs_too_much_memory_is_killed(here: RealCluster) -> None:
    """Limits are cgroups: this is the one that training meets."""
    manifest = hello.pod("hungry", restartPolicy="Never")
    manifest["spec"]["containers"][0] |= {"args": ["eat", "200"], "resources": {"limits": {"memory": "64Mi"}}}
    del manifest["spec"]["containers"][0]["readinessProbe"]
    here.api.create(manifest)
    hungry = here.api.wait(
        "Pod", "hungry", "default", lambda pod: pod["status"]["phase"] == "Failed", seconds=POD_SECONDS
    )
    assert hungry["status"]["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def _hello(cluster: RealCluster, pod: str, host: str) -> subprocess.CompletedProcess[str]:
    return cluster.kubectl("exec", pod, "--", "/hello", "get", f"http://{host}/")
