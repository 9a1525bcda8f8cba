"""Completions of very different lengths: each is scored when it has ended, while others are still being generated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from run.command import Running
from run.jobs import Job

STEPS = 2
COMPLETIONS = 32
EARLY_SECONDS = 0.02
LONG_TAIL = (
    "rollout.promptsPerStep=4",
    "algorithm.groupSize=8",
    "rollout.maxResponseTokens=190",
    f"trainer.steps={STEPS}",
    "data.eval=null",
)


def test_completions_are_scored_while_others_are_generated_and_a_slow_reward_changes_nothing(
    long_tail: Job, tmp_path: Path, base: Path
) -> None:
    other = make(Job(tmp_path / "other", base))
    quick, slow = start(long_tail, "score").end(), start(other, "slow").end()
    for ended, job in ((quick, long_tail), (slow, other)):
        assert ended.code == 0, ended
        calls = scored(job)
        assert len(calls) == STEPS * COMPLETIONS
        for step, row in enumerate(ended.rows[-STEPS:]):
            times = sorted(moment for moment, _, _ in calls[step * COMPLETIONS : (step + 1) * COMPLETIONS])
            early = sum(times[-1] - moment > EARLY_SECONDS for moment in times)
            seconds = {phase: round(value, 3) for phase, value in row["seconds"].items()}
            print(
                f"{early} of {COMPLETIONS} were scored {EARLY_SECONDS} s before the last, "
                f"within {times[-1] - times[0]:.2f} s; {seconds}"
            )
            assert early > 0
    assert quick.adapter_digest == slow.adapter_digest
    assert quick.rows_but_for_times == slow.rows_but_for_times


def test_a_step_of_which_nothing_can_be_scored_ends_the_run_and_counts_all_of_it(long_tail: Job) -> None:
    ended = start(long_tail, "refuse").end()
    assert ended.code == 1, ended
    assert (
        f"no score for any of {COMPLETIONS} completions ({COMPLETIONS} x exception: ValueError: no judge in here"
        in ended.stderr
    )
    assert len(scored(long_tail)) == COMPLETIONS
    assert ended.left_running == []


def test_a_worker_that_is_killed_while_it_generates_ends_the_run(long_tail: Job) -> None:
    run = start(long_tail, "score")
    # Before it matters: from the first score to the last pass tenths of a second.
    [worker] = run.wait_until(lambda: run.processes("ray::CheckpointingWorker"), "its worker was seen")
    run.wait_until(lambda: scored(long_tail), "the first completion was scored")
    worker.kill()
    ended = run.end()
    assert ended.code == 1, ended
    assert "a worker process ended" in ended.stderr
    assert "worker-0.log" in ended.stderr
    assert len(scored(long_tail)) < COMPLETIONS, "others were still being generated"
    told = [line for line in ended.stderr.splitlines() if not line.startswith("  | ")]
    assert len(told) == 1, "beside the end of the log one sentence"
    for noise in ("Traceback", "never retrieved", "never awaited"):
        assert noise not in ended.stdout
    assert ended.summary["state"] == "failed"
    assert ended.left_running == []


def start(job: Job, function: str) -> Running:
    return job.start(*LONG_TAIL, f"reward.function=slow_letters:{function}")


def scored(job: Job) -> list[tuple[float, str, str]]:
    """What the reward noted, in its order. A line that is being written does not count."""
    file = job.folder / "scored.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if file.exists()
        else []
    )


def make(job: Job) -> Job:
    shutil.copy(Path(__file__).with_name("slow_letters.py"), job.folder)
    job.environment["SCORED"] = str(job.folder / "scored.jsonl")
    return job


@pytest.fixture
def long_tail(job: Job) -> Job:
    return make(job)
