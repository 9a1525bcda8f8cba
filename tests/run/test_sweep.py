"""`lorarl sweep` as a user runs it: trials that are ordinary runs, and a second start that continues them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_rows, read_summary
from run.command import PATIENCE_SECONDS, digest, local_folder
from run.jobs import Job

COMMAND = [sys.executable, "-m", "lorarl_trainer.cli", "sweep", "job.yaml", "--over", "spec.trainer.seed=3,4"]
DATA = {"eval": {"uri": "file:held_out.jsonl", "every": 2}}


def started(job: Job, *more: str) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*COMMAND, *more], cwd=job.folder, env={**os.environ, **job.environment}, **pipes)


def ended(sweep: subprocess.Popen[str]) -> str:
    with sweep:
        return sweep.communicate(timeout=2 * PATIENCE_SECONDS)[0]


def folders(job: Job) -> list[Path]:
    return [job.folder / "out/letters-sweep" / f"seed={seed}" for seed in (3, 4)]


def test_trials_run_at_a_time_and_are_compared(job: Job) -> None:
    job.change(trainer={"steps": 2}, checkpoint={"every": 2}, data=DATA)
    sweep = started(job, "--at-once", "2", "--objective", "eval_score")
    said = ended(sweep)
    assert sweep.returncode == 0, said
    assert "2 trials, 2 at a time, in out/letters-sweep" in said and "spec.trainer.seed" in said
    assert "seed=4: done" in said and "\nBest  seed=" in said and ": eval_score " in said
    assert (job.folder / "out/letters-sweep/compare.html").stat().st_size > 50_000
    assert [read_summary(folder)["job"] for folder in folders(job)] == ["letters-seed-3", "letters-seed-4"]
    output = folders(job)[0] / "output.txt"
    printed = output.read_text()
    sweep = started(job)
    said = ended(sweep)
    assert sweep.returncode == 0 and said.count(": finished before") == 2 and ": starts" not in said, said
    assert output.read_text() == printed


@pytest.mark.long
def test_an_interrupted_sweep_continues_and_each_trial_is_what_it_is_alone(job: Job) -> None:
    job.change(trainer={"steps": 3}, checkpoint={"every": 1}, data=DATA)
    sweep, metrics = started(job), folders(job)[0] / "metrics.jsonl"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(row["step"] > 0 for row in read_rows(metrics)):
        assert time.monotonic() < deadline and sweep.poll() is None
        time.sleep(0.05)
    sweep.send_signal(signal.SIGTERM)
    said = ended(sweep)
    assert sweep.returncode == 75 and said.rstrip().endswith("Run the same command again to continue."), said
    assert "stopping: running trials" in said and "seed=3: interrupted; the same command continues it" in said
    assert not folders(job)[1].exists(), "no other trial starts"
    sweep = started(job)
    said = ended(sweep)
    assert sweep.returncode == 0, said
    assert [row["step"] for row in read_rows(metrics)] == [0, 1, 2, 3]
    for seed, folder in zip((3, 4), folders(job), strict=True):
        uris = [job.run(f"trainer.seed={seed}").adapter_uri, read_summary(folder)["adapter_uri"]]
        alone, found = [digest(local_folder(uri) / "adapter_model.safetensors") for uri in uris]
        assert alone == found
        job.folder.joinpath("out/letters").rename(job.folder / f"out/alone-{seed}")
        job.checkpoints.rename(job.folder / f"alone-{seed}")


@pytest.mark.long
def test_a_stopped_trial_publishes_a_checkpoint_and_may_continue(job: Job) -> None:
    """Any small letters are better than the answer, which the model never gives: that trial has a reward of 0."""
    job.change(trainer={"steps": 60}, checkpoint={"every": 50}, data={"eval": None})
    command = [*COMMAND[: COMMAND.index("--over")], "--over", "spec.reward.function=letters:score,letters:right"]
    folder = job.folder / "out/letters-sweep/function=letters_right"

    def runs(*more: str) -> str:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, **job.environment}
        said = ended(sweep := subprocess.Popen([*command, *more], cwd=job.folder, env=environment, **pipes))
        assert sweep.returncode == 0, said
        return said

    def steps() -> int:
        return int(read_rows(folder / "metrics.jsonl")[-1]["step"])

    stopping = ("--stop", "median", "--start-after", "3", "--min-trials", "1")
    said = runs(*stopping)
    assert "function=letters:right: is stopped, since its best until step" in said
    assert "function=letters:right: stopped; its checkpoint is published" in said
    assert "\nBest  function=letters:score: reward_mean" in said
    done = steps()
    assert 3 <= done < 60
    kept = local_folder(str(read_summary(folder)["adapter_uri"]))
    assert (kept / "adapter_model.safetensors").exists() and f"{done:07d}" in str(kept)
    said = runs(*stopping)
    assert "function=letters:right: was stopped, since" in said and "Without --stop it continues." in said
    assert steps() == done
    runs()
    assert steps() == 60 and not (folder / "stopped.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("share", [(), ("--share",)], ids=["alone", "shared"])
def test_halving_lets_the_best_of_three_make_all_steps(job: Job, share: tuple[str, ...]) -> None:
    """One at a time: the trial that gets rewards comes second, so the first one has to give its place away."""
    job.change(trainer={"steps": 30}, checkpoint={"every": 30}, data={"eval": None})
    rewards = "letters:right,letters:score,letters:wrong"
    letters = job.folder / "letters.py"
    letters.write_text(letters.read_text() + "\n\ndef wrong(prompt, completion, answer, row):\n    return 0.0\n")
    command = [*COMMAND[: COMMAND.index("--over")], "--over", f"spec.reward.function={rewards}"]
    command += ["--stop", "halving", "--start-after", "3", *share]
    root = job.folder / "out/letters-sweep"

    def runs() -> str:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, **job.environment}
        said = ended(sweep := subprocess.Popen(command, cwd=job.folder, env=environment, **pipes))
        assert sweep.returncode == 0, said
        return said

    def steps() -> list[int]:
        names = ("right", "score", "wrong")
        return [int(read_rows(root / f"function=letters_{one}/metrics.jsonl")[-1]["step"]) for one in names]

    said = runs()
    assert "function=letters:right: gives its place to others, since its 0 at step 3 is number 1 of 1" in said
    assert "function=letters:score: continues" in said and "\nBest  function=letters:score: reward_mean" in said
    right, score, wrong = done = steps()
    assert score == 30 and 3 <= right < 30 and 3 <= wrong < 30
    kept = local_folder(str(read_summary(root / "function=letters_right")["adapter_uri"]))
    assert (kept / "adapter_model.safetensors").exists() and f"{right:07d}" in str(kept)
    said = runs()
    assert said.count(": was stopped, since") == 2 and said.count(": finished before") == 1 and steps() == done


def test_nothing_starts_if_a_trial_cannot_run(job: Job) -> None:
    sweep = started(job, "--over", "spec.adapter.rank=0,4")
    said = ended(sweep)
    assert sweep.returncode == 1 and "2 of 4 trials that cannot run" in said and "rank=0: spec.adapter.rank" in said
    assert not (job.folder / "out").exists()
