"""A job in a queue whose pods never start: it ends for the right reason, and the job that waits gets the machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.kueue import install_kueue, small_job
from node.installation import Images, apply, make_room
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.kueue import QUEUE_LABEL, add_queue
from support.cluster.lorarljobs import condition
from support.cluster.processes import until
from support.real_cluster.example import ADDITION
from support.real_cluster.mistakes import AT_FIRST_FAILURE, TRAINER_SECONDS
from support.real_cluster.store import bucket_of
from support.real_cluster.watched import Watched, watched

pytestmark = pytest.mark.long

TEAM, QUEUE = "starts", "room-for-a-start"
COMPETITOR = "waits"


@pytest.fixture(scope="module")
def here(installed: RealCluster, out: Path) -> Iterator[RealCluster]:
    """The cluster with a queue that has room for one job."""
    install_kueue(installed)
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
    make_room(installed, TEAM)
    installed.must("delete", "clusterqueue,resourceflavor", QUEUE, "--ignore-not-found")
    installed.must("delete", "localqueue", QUEUE, "-n", TEAM, "--ignore-not-found")
    add_queue(installed, TEAM, QUEUE, {"cpu": "2", "memory": "10Gi"})
    yield installed
    installed.must("delete", "lorarljobs,jobs", "--all", "-n", TEAM, "--wait")


def test_an_init_container_fails(here: RealCluster, images: Images) -> None:
    """Long enough for another to join the queue. KubeRay replaces the pod twice, in the same RayJob."""
    fails = {"name": "fetch", "image": images.trainer, "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c"]}
    changes = worker_with(initContainers=[{**fails, "args": ["sleep 3; echo no such model >&2; exit 22"]}])
    with contested(here, "init-fails", changes, images) as job:
        job_of_another(here, "Suspended")
        until(TRAINER_SECONDS, "the third failure has ended it", lambda: job.ended)
        status = job.now.status
        failed = condition({"status": status}, "Failed")
        assert failed["reason"] == "InitFailed"
        assert "exit code 22. Its last output: no such model" in failed["message"]
        assert job.now.counters == (1, 0)
        assert condition({"status": status}, "Disrupted") == {}
        job_of_another(here, "Complete")


def test_the_kubelet_refuses_the_pods(here: RealCluster, images: Images) -> None:
    """Placed by name on a node whose labels are others. As far as anybody can tell, that is the node's fault."""
    (node,) = here.api.list("Node")
    name = node["metadata"]["name"]
    changes = {"cluster.nodeSelector": {"example.com/pool": "gpu"}, **worker_with(nodeName=name)}
    with contested(here, "refused", changes, images) as job:
        job.until(TRAINER_SECONDS, "the attempt has ended", lambda seen: seen.counters[1] >= 1)
        status = job.now.status
        assert job.now.counters == (0, 1), "not the job's failure, for which backoffLimit is 0"
        disrupted = condition({"status": status}, "Disrupted")
        assert disrupted["reason"] == "PodRefused"
        assert "NodeAffinity" in disrupted["message"]
        (fault,) = status["faultyNodes"]
        assert (fault["name"], fault["attempts"], fault["reason"]) == (name, 1, "PodRefused")
        job_of_another(here, "Complete")


def worker_with(**spec: object) -> Object:
    return {"cluster.podTemplateOverrides": {"worker": {"spec": spec}}}


@contextmanager
def contested(cluster: RealCluster, name: str, changes: Object, images: Images) -> Iterator[Watched]:
    """A job in the queue, and one of somebody else that waits for it."""
    manifest = ADDITION.manifest(name, {**AT_FIRST_FAILURE, **changes})
    manifest["metadata"]["labels"] = {QUEUE_LABEL: QUEUE}
    apply(cluster, manifest, namespace=TEAM)
    try:
        with watched(cluster.api, TEAM, name) as job:
            job.until(TRAINER_SECONDS, "it is admitted", lambda seen: seen.status.get("startTime"))
            apply(cluster, small_job(COMPETITOR, images.trainer, QUEUE), namespace=TEAM)
            yield job
    finally:
        cluster.must("delete", f"lorarljob/{name}", f"job/{COMPETITOR}", "-n", TEAM, "--wait")


def job_of_another(cluster: RealCluster, state: str) -> None:
    cluster.must("wait", f"job/{COMPETITOR}", "-n", TEAM, f"--for=condition={state}", "--timeout=55s")
