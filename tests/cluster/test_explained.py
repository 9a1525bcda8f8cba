"""`kubectl describe lrj` soon shows what a user has got wrong, with the fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.installation import Images, apply, make_room, store_secret
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.lorarljobs import condition
from support.cluster.processes import until
from support.real_cluster.example import ADDITION
from support.real_cluster.mistakes import (
    AT_FIRST_FAILURE,
    NO_IMAGE,
    SECONDS,
    TRAINER_SECONDS,
    Mistake,
    note,
    read_in_describe,
    remove,
)
from support.real_cluster.store import bucket_of
from support.real_cluster.watched import watched

pytestmark = pytest.mark.long

TEAM = "mistaken"


def ends_at_once() -> Object:
    """A pod template by which the head runs something else than Ray."""
    container = {"name": "ray-head", "command": ["bash", "-c"], "args": ["echo this is no trainer >&2; exit 3"]}
    return {
        "metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}},
        "spec": {"containers": [container]},
    }


AT_ONCE = [
    Mistake("no-image", ("ImagePull", NO_IMAGE, "Correct cluster.image"), {"cluster.image": NO_IMAGE}),
    Mistake("no-gpus", ("Unschedulable", "Insufficient nvidia.com/gpu", "gpusPerNode"), {"cluster.gpusPerNode": 8}),
    Mistake(
        "no-trainer",
        ("exited by itself with code 3", "this is no trainer"),
        {"cluster.podTemplateOverrides": {"head": ends_at_once()}},
    ),
    Mistake("no-shell", ("cannot be created", "Correct the image")),
]
MOST_PODS = 20
"""Pods that KubeRay may make while the operator learns of three refusals. Without an end it made 114 in 25 s."""
BY_THE_TRAINER = [
    Mistake(
        "no-bucket",
        ("There is no bucket 'nowhere'", "spec.checkpoint.uri"),
        {"checkpoint.uri": "s3://nowhere/adapters"},
    ),
    Mistake(
        "wrong-key", ("The store refuses the keys", "spec.checkpoint"), {"checkpoint.credentialsSecret": "wrong-keys"}
    ),
]


@pytest.fixture(scope="module")
def here(installed: RealCluster, out: Path) -> Iterator[RealCluster]:
    """The cluster, where nothing keeps a job from running but its own mistake."""
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
    make_room(installed, TEAM, store_secret("wrong-keys", AWS_SECRET_ACCESS_KEY="guessed"))
    yield installed
    installed.must("delete", "lorarljobs", "--all", "-n", TEAM, "--wait")


@pytest.mark.parametrize("mistake", AT_ONCE, ids=lambda mistake: mistake.name)
def test_what_cannot_start_is_explained(here: RealCluster, mistake: Mistake, images: Images, out: Path) -> None:
    changes = mistake.changes or {"cluster.image": images.store}
    apply(here, ADDITION.manifest(mistake.name, {**AT_FIRST_FAILURE, **changes}), namespace=TEAM)
    try:
        seconds = read_in_describe(here, TEAM, mistake, out)
    finally:
        remove(here, TEAM, mistake)  # also a mistake that is not explained leaves the room to the next one
    print(f"{mistake.name}: explained {seconds:.1f} s after `kubectl apply`")
    note(out, mistake, seconds)


def worker_with(**spec: object) -> Object:
    return {"cluster.podTemplateOverrides": {"worker": {"spec": spec}}}


def test_an_init_container_that_fails_ends_the_job(here: RealCluster, images: Images, out: Path) -> None:
    fetch = {"name": "fetch", "image": images.trainer, "imagePullPolicy": "IfNotPresent", "command": ["bash", "-c"]}
    fails = worker_with(initContainers=[{**fetch, "args": ["echo no such model >&2; exit 22"]}])
    mistake = Mistake("init-fails", ("InitFailed", "exit code 22. Its last output: no such model"), fails)
    apply(here, ADDITION.manifest(mistake.name, {**AT_FIRST_FAILURE, **fails}), namespace=TEAM)
    try:
        with watched(here.api, TEAM, mistake.name) as job:
            note(out, mistake, read_in_describe(here, TEAM, mistake, out))
            until(TRAINER_SECONDS, "the third failure has ended it", lambda: job.ended)
            status = job.now.status
    finally:
        remove(here, TEAM, mistake)
    assert condition({"status": status}, "Failed")["reason"] == "InitFailed"
    assert (status["attempts"], status.get("preemptions", 0)) == (1, 0)


def test_pods_that_the_kubelet_refuses_end_the_attempt(here: RealCluster, out: Path) -> None:
    """Placed by name, they ask for more than the node has. That is the node's fault, as far as anybody can tell."""
    (node,) = here.api.list("Node")
    refused = {"cluster.cpusPerNode": "1000", **worker_with(nodeName=node["metadata"]["name"])}
    mistake = Mistake("refused", ("PodRefused", "OutOfcpu", node["metadata"]["name"]), refused)
    apply(here, ADDITION.manifest(mistake.name, {**AT_FIRST_FAILURE, **refused}), namespace=TEAM)
    try:
        with watched(here.api, TEAM, mistake.name) as job:
            note(out, mistake, read_in_describe(here, TEAM, mistake, out))
            seen = job.until(TRAINER_SECONDS, "the attempt has ended", lambda seen: seen.counters[1] >= 1)
        made = here.api.list("Event", TEAM, fields="involvedObject.kind=RayCluster,reason=CreatedWorkerPod")
    finally:
        remove(here, TEAM, mistake)
    assert seen.counters == (0, 1), "not the job's failure, for which backoffLimit is 0"
    assert condition({"status": seen.status}, "Disrupted")["reason"] == "PodRefused"
    of_first = [one for one in made if one["involvedObject"]["name"].startswith("refused-1-")]
    assert 3 <= sum(int(one.get("count") or 1) for one in of_first) <= MOST_PODS


@pytest.mark.parametrize("mistake", BY_THE_TRAINER, ids=lambda mistake: mistake.name)
def test_what_the_trainer_finds_is_explained(here: RealCluster, mistake: Mistake, out: Path) -> None:
    apply(here, ADDITION.manifest(mistake.name, {**AT_FIRST_FAILURE, **mistake.changes}), namespace=TEAM)
    try:
        with watched(here.api, TEAM, mistake.name) as job:
            until(TRAINER_SECONDS, "the trainer has failed", lambda: job.ended or job.now.status.get("failure"))
            seconds = read_in_describe(here, TEAM, mistake, out)
            until(SECONDS, "the job has failed", lambda: job.now.status["phase"] == "Failed")
    finally:
        remove(here, TEAM, mistake)
    print(f"{mistake.name}: explained {seconds:.1f} s after the trainer had failed")
    note(out, mistake, seconds)
