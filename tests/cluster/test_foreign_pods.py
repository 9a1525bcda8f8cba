"""Pods of others reach no port of a job's pods, and the job trains all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.installation import Images, apply, make_room
from node.node import Node
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.real_cluster.enforced import enforced
from support.real_cluster.example import ADDITION
from support.real_cluster.store import bucket_of
from support.real_cluster.trial import START_SECONDS
from support.real_cluster.watched import Watched, watched

pytestmark = pytest.mark.long

TEAM, FOREIGN = "reached", "foreign"
JOB = "guarded"
DASHBOARD, GCS = 8265, 6379
LISTENS = """
import psutil
listening = [one.laddr for one in psutil.net_connections("tcp") if one.status == "LISTEN"]
print(*sorted({port for address, port in listening if not address.startswith(("127.", "::1"))}))
"""
"""Prints the ports of a pod that others might connect to."""
KNOCK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def open_(address):
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return False
    return True
addresses = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(addresses)) as threads:
    answers = list(threads.map(lambda one: open_(tuple(one)), addresses))
print(json.dumps([one for one, answer in zip(addresses, answers) if answer]))
"""
"""Prints which of the given addresses accept a connection."""


@pytest.fixture(scope="module")
def job(installed: RealCluster, images: Images, out: Path) -> Iterator[Watched]:
    """Two workers, whose rendezvous and collective operations choose their ports."""
    cluster = installed
    with bucket_of(cluster, out) as bucket:
        ADDITION.upload(bucket)
    for team in (TEAM, FOREIGN):
        make_room(cluster, team)
    apply(cluster, _idle(images.trainer), namespace=FOREIGN)
    changes = {"cluster.nodes": 2, "checkpoint.resume": "Never", "trainer.steps": 2000, "data.eval.every": 2000}
    apply(cluster, ADDITION.manifest(JOB, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as found:
        yield found
    for team in (TEAM, FOREIGN):
        cluster.must("delete", "lorarljobs,pods", "--all", "-n", team, "--wait")


def test_only_where_policies_are_enforced_is_a_job_out_of_reach(
    job: Watched, own_node: Node, installed: RealCluster
) -> None:
    with enforced(own_node, installed.api, TEAM):
        job.until(START_SECONDS, "it trains, although its policy holds from its start", lambda seen: seen.step > 0)
        addresses = listening(installed)
        assert knock(installed, "idle", FOREIGN, addresses) == []
        worker = job.api.list("Pod", TEAM, f"lorarl.io/job={JOB},lorarl.io/role=worker")[0]["metadata"]["name"]
        assert_all_pods(knock(installed, worker, TEAM, addresses))
        reached = job.now.step
        job.until(START_SECONDS, "it trains on", lambda seen: seen.step > reached)
    assert_all_pods(knock(installed, "idle", FOREIGN, addresses))  # nothing else keeps it out


def assert_all_pods(reached: list[list[object]]) -> None:
    """Head and both workers, and what a stranger would look for. Some ports of Ray's are closed again soon."""
    assert {port for _, port in reached} >= {DASHBOARD, GCS}
    assert len({address for address, _ in reached}) == 3


def listening(cluster: RealCluster) -> list[list[object]]:
    """Address and port of all that the job's pods listen to."""
    found: list[list[object]] = []
    for pod in cluster.api.list("Pod", TEAM, f"lorarl.io/job={JOB}"):
        role = pod["metadata"]["labels"]["lorarl.io/role"]
        command = ("exec", pod["metadata"]["name"], "-n", TEAM, "-c", f"ray-{role}", "--", "python", "-c", LISTENS)
        found += [[pod["status"]["podIP"], int(port)] for port in cluster.must(*command).split()]
    return found


def knock(cluster: RealCluster, pod: str, namespace: str, addresses: list[list[object]]) -> list[list[object]]:
    """Those of the addresses that accept a connection from a pod."""
    command = ("exec", pod, "-n", namespace, "--", "python", "-c", KNOCK, json.dumps(addresses))
    accepted: list[list[object]] = json.loads(cluster.must(*command))
    return accepted


def _idle(image: str) -> Object:
    container = {"name": "idle", "image": image, "command": ["sleep", "infinity"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "idle"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }
