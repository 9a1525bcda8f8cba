"""Completions of very different lengths: each is scored when it has ended, while others are still being generated.

Two runs of one job, one with a quick reward and one with a slow reward. The tests compare their first steps. Then each
run ends in its own way: with a killed worker, and with a step without a score.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from run.command import Ended, Running, digest
from run.jobs import Job, published

STEPS = 2
COMPLETIONS = 32
EARLY_SECONDS = 0.02
LONG_TAIL = (
    "rollout.promptsPerStep=4",
    "algorithm.groupSize=8",
    "rollout.maxResponseTokens=190",
    f"checkpoint.every={STEPS}",
    "data.eval=null",
)


@dataclass(frozen=True)
class LongTail:
    """A run that has ended, and its job."""

    job: Job
    ended: Ended

    @property
    def adapter_digest(self) -> str:
        """The digest of the adapter after the last step that is compared."""
        return digest(self.job.checkpoints / f"iter_{STEPS:07}" / "lora_adapter" / "adapter_model.safetensors")


def test_scored_while_others_are_generated_and_slow_rewards_change_nothing(quick: LongTail, slow: LongTail) -> None:
    for run in (quick, slow):
        calls = scored(run.job)
        for step, row in enumerate(run.ended.rows[:STEPS]):
            times = sorted(moment for moment, _, _ in calls[step * COMPLETIONS : (step + 1) * COMPLETIONS])
            early = sum(times[-1] - moment > EARLY_SECONDS for moment in times)
            seconds = {phase: round(value, 3) for phase, value in row["seconds"].items()}
            print(
                f"{early} of {COMPLETIONS} were scored {EARLY_SECONDS} s before the last, "
                f"within {times[-1] - times[0]:.2f} s; {seconds}"
            )
            assert row["step"] == step + 1
            assert early > 0
    assert quick.adapter_digest == slow.adapter_digest
    assert quick.ended.rows_but_for_times[:STEPS] == slow.ended.rows_but_for_times[:STEPS]


def test_a_step_without_any_score_ends_the_run_and_counts_all_of_it(slow: LongTail) -> None:
    ended = slow.ended
    assert ended.code == 1, ended
    assert [row["step"] for row in ended.rows] == list(range(1, STEPS + 1))
    assert (
        f"no score for any of {COMPLETIONS} completions ({COMPLETIONS} x exception: ValueError: no judge in here"
        in ended.stderr
    )
    assert len(scored(slow.job)) == (STEPS + 1) * COMPLETIONS
    assert ended.left_running == []


def test_a_worker_that_is_killed_while_it_generates_ends_the_run(quick: LongTail) -> None:
    ended = quick.ended
    assert ended.code == 1, ended
    assert "a worker process ended" in ended.stderr
    assert "worker-0.log" in ended.stderr
    assert len(scored(quick.job)) % COMPLETIONS > 0, "others were still being generated"
    told = [line for line in ended.stderr.splitlines() if not line.startswith("  | ")]
    assert len(told) == 1, "beside the end of the log one sentence"
    for noise in ("Traceback", "never retrieved", "never awaited"):
        assert noise not in ended.stdout
    assert ended.summary["state"] == "failed"
    assert ended.left_running == []


@pytest.fixture(scope="module")
def quick(base: Path, tmp_path_factory: pytest.TempPathFactory) -> LongTail:
    """Its worker is killed while it generates, once the steps that are compared are published."""
    job = make(Job(tmp_path_factory.mktemp("quick"), base))
    run = start(job, "score")
    run.wait_until(lambda: f"iter_{STEPS:07}" in published(job), f"step {STEPS} was published")
    [worker] = run.wait_until(lambda: run.processes("ray::CheckpointingWorker"), "its worker was seen")
    done = len(scored(job)) // COMPLETIONS
    # Only tenths of a second pass between the first and the last score of a step.
    run.wait_until(lambda: len(scored(job)) > (done + 1) * COMPLETIONS, "the next step's first completion was scored")
    worker.kill()
    return LongTail(job, run.end())


@pytest.fixture(scope="module")
def slow(base: Path, tmp_path_factory: pytest.TempPathFactory) -> LongTail:
    """After the steps that are compared, its reward function gives no score."""
    job = make(Job(tmp_path_factory.mktemp("slow"), base))
    return LongTail(job, start(job, "slow").end())


def start(job: Job, function: str) -> Running:
    return job.start(*LONG_TAIL, f"reward.function=slow_letters:{function}")


def scored(job: Job) -> list[tuple[float, str, str]]:
    """The reward's notes, in order, without a line that is still being written."""
    file = job.folder / "scored.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if file.exists()
        else []
    )


def make(job: Job) -> Job:
    shutil.copy(Path(__file__).with_name("slow_letters.py"), job.folder)
    job.environment["SCORED"] = str(job.folder / "scored.jsonl")
    job.environment["LAST_SCORED"] = str(STEPS * COMPLETIONS)
    return job
