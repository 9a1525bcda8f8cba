"""Interruptions that take too long for every change: five kills at random moments, and a disk that fills up."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from run.command import Ended
from run.jobs import STEPS, Job, published_steps

pytestmark = [pytest.mark.long, pytest.mark.both_backends]
MOMENTS = 5


def test_killed_at_five_random_moments_it_ends_in_the_same_bytes(job: Job, reference: Ended) -> None:
    """At any time of the process: while it loads, within steps, while it writes a checkpoint."""
    moments = random.Random(20)
    for _ in range(MOMENTS):
        run = job.start()
        moment = moments.uniform(0.0, reference.seconds)
        run.let_pass(moment)
        run.kill()
        ended = run.end()
        assert ended.left_running == [], moment
        if (job.checkpoints / "latest.json").exists():
            published_steps(job.checkpoints)
    ended = job.run()
    assert ended.code == 0, ended
    assert ended.adapter_digest == reference.adapter_digest
    assert ended.rows_but_for_times == reference.rows_but_for_times


def test_a_disk_that_fills_is_told_and_the_run_goes_on_when_there_is_room(
    job: Job, small_disk: Path, reference: Ended
) -> None:
    on_disk = f"checkpoint.uri={small_disk.as_uri()}"
    ended = job.run(on_disk)
    assert ended.code == 1, ended
    assert len(ended.stderr.splitlines()) == 1
    assert "the disk is full" in ended.stderr
    assert "It is kept in" in ended.stderr
    published = published_steps(small_disk / job.checkpoints.name)
    assert 2 <= published[-1] < STEPS

    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    ended = job.run(on_disk)
    assert ended.code == 0, ended
    assert ended.summary["resumed_from_step"] > published[-1], "from what was kept here"
    assert ended.adapter_digest == reference.adapter_digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for about three of the job's checkpoints."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)
