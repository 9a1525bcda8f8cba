"""`kubectl describe lrj` soon shows what a user has got wrong about GPUs, with the fix."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_cluster.ground import Ground
from node import builds
from node.installation import STORE_KEYS, apply, make_room
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.headers_only import write_headers
from support.real_cluster import example
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
from support.real_cluster.store import Bucket
from support.real_cluster.watched import watched

TEAM = "gpu-mistaken"
AT_ONCE = [
    Mistake("more-gpus", ("Unschedulable", "Insufficient nvidia.com/gpu", "gpusPerNode"), {"cluster.gpusPerNode": 64}),
    Mistake("no-image", ("ImagePull", NO_IMAGE, "correct cluster.image"), {"cluster.image": NO_IMAGE}),
    # An image without Python, CUDA or even a shell.
    Mistake(
        "bad-image",
        ("cannot be made", "correct the image"),
        {"cluster.image": builds.STORE, "cluster.podTemplateOverrides": {}},
    ),
]
TOO_LARGE = Mistake(
    "too-large",
    ("tensorParallelSize", "70,554,525,696 parameters in bf16", "free on the GPU"),
    {"model.uri": "s3://lorarl/too-large/base"},
)


@pytest.fixture(scope="module")
def here(ground: Ground, bucket: Bucket) -> Iterator[RealCluster]:
    """The cluster, where nothing keeps a job from running but its own mistake."""
    make_room(ground.cluster, TEAM, level="privileged")
    yield ground.cluster
    ground.cluster.must("delete", "lrj", "--all", "-n", TEAM, "--wait")


@pytest.mark.parametrize("mistake", AT_ONCE, ids=lambda mistake: mistake.name)
def test_what_cannot_start_is_explained(here: RealCluster, ground: Ground, mistake: Mistake) -> None:
    apply(here, ground.manifest(mistake.name, {**AT_FIRST_FAILURE, **mistake.changes}), namespace=TEAM)
    seconds = read_in_describe(here, TEAM, mistake, ground.out)
    remove(here, TEAM, mistake)
    print(f"{mistake.name}: explained {seconds:.1f} s after `kubectl apply`")
    note(ground.out, mistake, seconds)


def test_a_base_model_that_cannot_fit_is_explained_by_the_memory_plan(
    here: RealCluster, ground: Ground, bucket: Bucket, tmp_path: Path
) -> None:
    """Llama's shape with 70 billion parameters. Its weights are never read, so that their headers are enough."""
    if not ground.gpus:
        pytest.skip("a rehearsal has no GPU whose memory could be planned")
    base = tmp_path / "base"
    shutil.copytree(ground.example.folder / "base", base, ignore=shutil.ignore_patterns("*.safetensors"))
    write_headers(base, hidden=8192, ffn=28_672, layers=80, heads=64, key_heads=8, vocabulary=128_256)
    upload = [sys.executable, "-m", "lorarl_trainer.cli", "upload", str(base), "s3://lorarl/too-large"]
    example.run(upload, {**STORE_KEYS, "AWS_ENDPOINT_URL": bucket.url})
    apply(here, ground.manifest(TOO_LARGE.name, {**AT_FIRST_FAILURE, **TOO_LARGE.changes}), namespace=TEAM)
    with watched(here.api, TEAM, TOO_LARGE.name) as job:
        until(TRAINER_SECONDS, "the trainer has refused it", lambda: job.ended or job.now.status.get("failure"))
        seconds = read_in_describe(here, TEAM, TOO_LARGE, ground.out)
        until(SECONDS, "the job has failed", lambda: job.now.status["phase"] == "Failed")
    remove(here, TEAM, TOO_LARGE)
    print(f"too-large: explained {seconds:.1f} s after the trainer had refused it")
    note(ground.out, TOO_LARGE, seconds)
    ground.gpus_are_free()
