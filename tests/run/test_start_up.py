"""An interruption before the first step: there is nothing to save, so it ends as soon as what is being started can be ended."""

from __future__ import annotations

import signal
import time

from jobs import Job

PROMPTLY_SECONDS = 25.0
"""Less than the 30 s that Kubernetes grants; Ray cannot be ended before it has started."""


def test_sigterm_while_the_model_is_fetched_ends_promptly(job: Job) -> None:
    run = job.start("backoffLimit=1", "cluster.image=trainer")
    run.wait_until(job.out.exists, "it began")
    asked = time.monotonic()
    run.signal(signal.SIGTERM)
    ended = run.end()
    assert ended.code == 75, ended
    assert time.monotonic() - asked < PROMPTLY_SECONDS
    assert "interrupted before the first step was done" in ended.stdout
    assert ended.stdout.count("`lorarl run` ignores what only a cluster can honour: spec.cluster.image, spec.backoffLimit") == 1
    assert "no checkpoint is published yet, and the same command starts anew" in ended.stdout
    assert (ended.stderr, ended.left_running, ended.left_in_memory) == ("", [], [])


def test_sigterm_while_the_workers_load_ends_promptly(job: Job) -> None:
    run = job.start()
    run.wait_until((job.out / "logs" / "worker-0.log").exists, "the worker began")
    asked = time.monotonic()
    run.signal(signal.SIGTERM)
    ended = run.end()
    assert ended.code == 75, ended
    assert time.monotonic() - asked < PROMPTLY_SECONDS
    assert "no checkpoint is published yet, and the same command starts anew" in ended.stdout
    assert (ended.stderr, ended.left_running, ended.left_in_memory) == ("", [], [])
    assert not job.checkpoints.exists(), "nothing was claimed"
