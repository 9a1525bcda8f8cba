"""The same manifest and seed give the same adapter, byte for byte, whatever carries it."""

from __future__ import annotations

import shutil

import pytest

from run.command import Ended
from run.jobs import STEPS, Job


def test_the_other_transport_gives_the_same_bytes(job: Job, reference: Ended) -> None:
    ended = job.run("rollout.adapterSync=disk")
    assert ended.code == 0, ended
    assert ended.adapter_digest == reference.adapter_digest
    assert ended.rows_but_for_times == reference.rows_but_for_times
    assert ended.left_in_memory == []


def test_one_thread_gives_the_same_bytes_as_two(job: Job, reference: Ended) -> None:
    ended = job.start(through=["taskset", "--cpu-list", "0"]).end()
    assert ended.code == 0, ended
    assert ended.adapter_digest == reference.adapter_digest


def test_two_workers_go_on_from_the_checkpoint_of_one_with_the_same_losses(
    job: Job, reference: Ended, reference_job: Job
) -> None:
    # As a user who has a copy of some checkpoints: no latest.json, none after step 6.
    for step in (2, 4, 6):
        folder = f"iter_{step:07}"
        shutil.copytree(reference_job.checkpoints / folder, job.checkpoints / folder)
    shutil.copy(reference_job.out / "metrics.jsonl", job.out.mkdir(parents=True) or job.out)

    ended = job.run("trainer.tensorParallelSize=2")

    assert ended.code == 0, ended
    assert "latest.json is missing. Searched the folders instead" in ended.stdout
    assert ended.summary["resumed_from_step"] == 6
    assert [row["step"] for row in ended.rows] == list(range(STEPS + 1))
    for one, two in zip(reference.rows[7:], ended.rows[7:], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-5), one["step"]
        assert two["reward_mean"] == one["reward_mean"]
    assert {path.name for path in (job.out / "logs").iterdir()} == {"worker-0.log", "worker-1.log"}
    assert ended.left_running == []
