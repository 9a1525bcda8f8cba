"""An interruption before the first step: there is nothing to save, so it ends as soon as its processes can end."""

from __future__ import annotations

import os
import signal
import time

from run.command import PATIENCE_SECONDS, Ended, Running
from run.jobs import Job
from run.ray_nodes import ray_nodes

PROMPTLY_SECONDS = 25.0
"""Less than the 30 s that Kubernetes grants. Ray cannot be ended before it has started."""


def test_sigterm_while_the_model_is_fetched_ends_promptly(job: Job) -> None:
    run = job.start("backoffLimit=1", "cluster.image=trainer")
    run.wait_for_output("ignores fields that need a cluster")
    ended = end_promptly(run)
    assert "interrupted before the first step finished" in ended.stdout
    assert (
        ended.stdout.count("`lorarl run` ignores fields that need a cluster: spec.cluster.image, spec.backoffLimit")
        == 1
    )
    assert ended.stderr == ""


def test_sigterm_while_the_workers_load_ends_promptly(job: Job) -> None:
    run = job.start()
    run.wait_until((job.out / "logs" / "worker-0.log").exists, "the worker began")
    ended = end_promptly(run)
    assert ended.stderr == ""
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_sigterm_while_data_is_read_ends_promptly(job: Job) -> None:
    """A download may take minutes. Here the file is a pipe that no process writes to."""
    (job.folder / "train.jsonl").unlink()
    os.mkfifo(job.folder / "train.jsonl")
    run = job.start()
    run.wait_until((job.out / "logs" / "worker-0.log").exists, "the worker began")
    end_promptly(run)


def test_sigterm_while_a_cluster_has_no_room_for_the_workers_ends_promptly(job: Job) -> None:
    """As in a pod while the workers' pods are pending."""
    with ray_nodes(job.folder / "ray") as nodes:
        job.environment["RAY_ADDRESS"] = nodes.address
        run = job.start()
        run.wait_for_output("Connected to Ray cluster")
        end_promptly(run)


def end_promptly(run: Running) -> Ended:
    """Send SIGTERM. The output and what is left behind are the same at any moment of a start."""
    asked = time.monotonic()
    run.signal(signal.SIGTERM)
    run.let_pass(PATIENCE_SECONDS)
    took = time.monotonic() - asked
    ended = run.end()
    assert ended.code == 75, ended
    assert took < PROMPTLY_SECONDS
    assert "no checkpoint is published yet, so the same command starts from the beginning" in ended.stdout
    assert (ended.left_running, ended.left_in_memory) == ([], [])
    return ended
