"""The same manifest and seed give the same adapter, byte for byte, with any transport and any number of threads."""

from __future__ import annotations

import os
import shutil

import pytest

from run.command import Ended, digest
from run.jobs import STEPS, Job

FEWER_STEPS = 10
"""Enough to compare: the reference run also evaluates and publishes after this step."""


def test_the_other_transport_and_other_threads_give_the_same_bytes(
    job: Job, reference: Ended, reference_job: Job
) -> None:
    """One thread if the reference has several, several if it has one. tests/trainer compares the transports alone."""
    own = os.sched_getaffinity(0)
    cores = f"0-{(os.cpu_count() or 1) - 1}" if len(own) == 1 else str(min(own))
    overrides = ("rollout.adapterSync=disk", f"trainer.steps={FEWER_STEPS}")
    ended = job.start(*overrides, through=["taskset", "--cpu-list", cores]).end()
    assert ended.code == 0, ended
    adapter = f"iter_{FEWER_STEPS:07}/lora_adapter/adapter_model.safetensors"
    assert ended.adapter_digest == digest(reference_job.checkpoints / adapter)
    expected = reference.rows_but_for_times[: FEWER_STEPS + 1]
    assert ended.rows_but_for_times == [expected[0], *(row | {"total_steps": FEWER_STEPS} for row in expected[1:])]
    assert ended.left_in_memory == []


@pytest.mark.long
@pytest.mark.parametrize("layout", ["tensorParallelSize", "contextParallelSize"])
def test_two_workers_go_on_from_the_checkpoint_of_one_with_the_same_losses(
    job: Job, reference: Ended, reference_job: Job, layout: str
) -> None:
    # A user has a copy of some checkpoints: without latest.json, and none after step 6.
    for step in (2, 4, 6):
        folder = f"iter_{step:07}"
        shutil.copytree(reference_job.checkpoints / folder, job.checkpoints / folder)
    shutil.copy(reference_job.out / "metrics.jsonl", job.out.mkdir(parents=True) or job.out)

    ended = job.run(f"trainer.{layout}=2")

    assert ended.code == 0, ended
    assert "latest.json is missing. Searched the folders instead" in ended.stdout
    assert ended.summary["resumed_from_step"] == 6
    assert [row["step"] for row in ended.rows] == list(range(STEPS + 1))
    for one, two in zip(reference.rows[7:], ended.rows[7:], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-5), one["step"]
        assert two["reward_mean"] == one["reward_mean"]
    assert {path.name for path in (job.out / "logs").iterdir()} == {
        "rewards.log",
        "worker-0.log",
        "worker-1.log",
    }
    assert ended.left_running == []


@pytest.mark.long
def test_a_run_shares_its_context_for_some_steps_and_then_no_more(job: Job, reference: Ended) -> None:
    """Two workers make one update together and generate for themselves; a checkpoint is the same on either side."""
    sharing = job.run("trainer.contextParallelSize=2", f"trainer.steps={FEWER_STEPS}")
    assert sharing.code == 0, sharing
    assert {path.name for path in (job.out / "logs").iterdir()} == {"rewards.log", "worker-0.log", "worker-1.log"}
    ended = job.run()
    assert ended.code == 0, ended
    assert ended.summary["resumed_from_step"] == FEWER_STEPS
    for one, found in zip(reference.rows[1:], ended.rows[1:], strict=True):
        assert found["loss"] == pytest.approx(one["loss"], abs=1e-5), one["step"]
        assert found["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3), one["step"]
        assert found["reward_mean"] == one["reward_mean"]
