"""Interruptions that take too long for every change: five kills at random moments, and a disk that fills up."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from run.command import Ended, digest
from run.jobs import EVERY, STEPS, Job, published, published_steps

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


PPO = {"criticLearningRate": 1.0e-3, "criticWarmupSteps": 2}
KILLED: dict[str, dict[str, dict[str, Any]]] = {
    # What resumes is the critic too: its adapter, its head and their moments.
    "ppo": {
        "algorithm": {"type": "ppo", "groupSize": 1, "updatesPerStep": 2, "ppo": PPO},
        "rollout": {"promptsPerStep": 16},
    },
    # The pass rates of the rows, and how far the data was drawn: further than the steps say, because of refills.
    "curriculum": {
        "algorithm": {"maxRefills": 2},
        "data": {"curriculum": {"passReward": 0.3, "leastShare": 0.05}},
    },
}


@pytest.mark.parametrize("what", KILLED)
def test_killed_at_three_steps_it_ends_in_the_same_state(tmp_path: Path, base: Path, backend: str, what: str) -> None:
    def job_in(folder: str) -> Job:
        made = Job(tmp_path / folder, base, backend=backend)
        made.change(**KILLED[what])
        return made

    undisturbed, job = job_in("undisturbed"), job_in("killed")
    expected = undisturbed.run()
    assert expected.code == 0, expected
    if what == "curriculum":
        assert max(row.get("curriculum/skipped_share", 0) for row in expected.rows) > 0, "no row was passed over"
    moments = random.Random(21)
    of_a_step = statistics.median(sum(row["seconds"].values()) for row in expected.rows if "seconds" in row)
    for step in (EVERY, 2 * EVERY + 1, STEPS - 2 * EVERY):
        run = job.start()
        run.wait_for_step(step)
        run.let_pass(moments.uniform(0.0, of_a_step))
        run.kill()
        ended = run.end()
        assert ended.left_running == [] and ended.code == -signal.SIGKILL, ended
    ended = job.run()
    assert ended.code == 0, ended
    assert 0 < ended.summary["resumed_from_step"] < STEPS
    assert ended.rows_but_for_times == expected.rows_but_for_times
    assert last_state(job) == last_state(undisturbed)


def last_state(job: Job) -> dict[str, str]:
    """Digests of the last checkpoint's adapter and training state, by file."""
    folder = job.checkpoints / published(job)[-1]
    files = [folder / "lora_adapter/adapter_model.safetensors", *sorted((folder / "trainer_state").iterdir())]
    assert len(files) >= 3 and f"{STEPS:07}" in folder.name
    return {path.name: digest(path) for path in files}


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
