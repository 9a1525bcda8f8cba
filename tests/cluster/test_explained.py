"""What a user has got wrong is told by `kubectl describe lrj`, soon and with the mend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster import example
from cluster.example import ADDITION
from cluster.installation import Images, apply, make_room, store_secret
from cluster.store import bucket_of
from cluster.watched import watched
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until

pytestmark = pytest.mark.long

TEAM = "mistaken"
SECONDS = 30.0
"""From the moment when it stands still, or has failed, until the user can read why."""
TRAINER_SECONDS = 180.0
"""From a manifest to the trainer's own words: pods, imports of torch and vLLM."""
ALL = {"backoffLimit": 0, "cluster.terminationGracePeriodSeconds": 30}
NO_IMAGE = "registry.invalid/nobody/nothing:1"


@dataclass(frozen=True)
class Mistake:
    """A job that cannot run.

    Attributes:
        name: Of the job.
        told: All of it must be read in `kubectl describe lrj`.
        changes: Of the example's spec.
    """

    name: str
    told: tuple[str, ...]
    changes: Object = field(default_factory=dict)


def ends_at_once() -> Object:
    """A pod template by which the head runs something else than Ray."""
    container = {"name": "ray-head", "command": ["bash", "-c"], "args": ["echo this is no trainer >&2; exit 3"]}
    return {"metadata": {"annotations": {"ray.io/overwrite-container-cmd": "true"}}, "spec": {"containers": [container]}}


AT_ONCE = [
    Mistake("no-image", ("ImagePull", NO_IMAGE, "correct cluster.image"), {"cluster.image": NO_IMAGE}),
    Mistake("no-gpus", ("Unschedulable", "Insufficient nvidia.com/gpu", "gpusPerNode"), {"cluster.gpusPerNode": 8}),
    Mistake("no-trainer", ("exit code 3", "this is no trainer"), {"cluster.podTemplateOverrides": {"head": ends_at_once()}}),
    Mistake("no-shell", ("cannot be made", "correct the image")),
]
BY_THE_TRAINER = [
    Mistake("no-bucket", ("There is no bucket 'nowhere'", "spec.checkpoint.uri"), {"checkpoint.uri": "s3://nowhere/adapters"}),
    Mistake("wrong-key", ("The store refuses the keys", "spec.checkpoint"), {"checkpoint.credentialsSecret": "wrong-keys"}),
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
    apply(here, ADDITION.manifest(mistake.name, {**ALL, **changes}), namespace=TEAM)
    seconds = read_in_describe(here, mistake, out)
    remove(here, mistake)
    print(f"{mistake.name}: explained {seconds:.1f} s after `kubectl apply`")
    note(out, mistake, seconds)


@pytest.mark.parametrize("mistake", BY_THE_TRAINER, ids=lambda mistake: mistake.name)
def test_what_the_trainer_finds_is_explained(here: RealCluster, mistake: Mistake, out: Path) -> None:
    apply(here, ADDITION.manifest(mistake.name, {**ALL, **mistake.changes}), namespace=TEAM)
    with watched(here.api, TEAM, mistake.name) as job:
        until(TRAINER_SECONDS, "the trainer has failed", lambda: job.ended or job.now.status.get("failure"))
        seconds = read_in_describe(here, mistake, out)
        until(SECONDS, "the job has failed", lambda: job.now.status["phase"] == "Failed")
    remove(here, mistake)
    print(f"{mistake.name}: explained {seconds:.1f} s after the trainer had failed")
    note(out, mistake, seconds)


def note(out: Path, mistake: Mistake, seconds: float) -> None:
    """Add it to what is known of the others."""
    example.note(out, explained={**example.noted(out).get("explained", {}), mistake.name: round(seconds, 1)})


def remove(cluster: RealCluster, mistake: Mistake) -> None:
    """Delete the job, and wait until its pods do not take the place of the next one's."""
    cluster.must("delete", "lorarljob", mistake.name, "-n", TEAM, "--wait")
    until(TRAINER_SECONDS, f"the pods of {mistake.name} are gone", lambda: not cluster.api.list("Pod", TEAM))


def read_in_describe(cluster: RealCluster, mistake: Mistake, out: Path) -> float:
    """Seconds until `kubectl describe` has all that is to be told; fails where it takes longer than it may."""
    started, text = time.monotonic(), ""

    def told() -> bool:
        nonlocal text
        text = cluster.must("describe", "lrj", mistake.name, "-n", TEAM)
        return all(each in text for each in mistake.told)

    try:
        until(SECONDS, f"{mistake.name} is explained by {mistake.told}", told)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text}") from None
    finally:
        (out / f"explained-{mistake.name}.txt").write_text(text)
    return time.monotonic() - started
