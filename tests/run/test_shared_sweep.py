"""`lorarl sweep --share` as a user runs it: one worker for all trials, and each is to the byte what it is alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

import psutil
import pytest

from lorarl_trainer.progress import is_time_column, read_rows, read_summary
from run.command import Ended, Running, digest, local_folder
from run.jobs import Job

SWEEP = [sys.executable, "-m", "lorarl_trainer.cli", "sweep"]
WORKER = "ray::SharedWorker"
STEPS = 6

pytestmark = pytest.mark.long


def sweep(job: Job, *over: str, at_once: int = 3) -> Running:
    """Start a sweep with a gate at which all its trials stand still."""
    arguments = ["job.yaml", *(part for one in over for part in ("--over", f"spec.{one}"))]
    environment = {**os.environ, **job.environment, "LETTERS_GATE": str(job.gate)}
    more = ["--share", "--at-once", str(at_once)]
    out = job.folder / "out/letters-sweep"
    return Running([*arguments, *more], job.folder, out, environment, command=SWEEP)


def short(job: Job) -> None:
    job.change(trainer={"steps": STEPS}, data={"eval": {"uri": "file:held_out.jsonl", "every": 3}})


def of_trial(ended: Ended, label: str) -> tuple[str, list[dict[str, object]]]:
    """The digest of a trial's adapter, and its metrics but for times."""
    folder = ended.out / label
    adapter = local_folder(str(read_summary(folder)["adapter_uri"])) / "adapter_model.safetensors"
    rows = read_rows(folder / "metrics.jsonl")
    return digest(adapter), [{name: row[name] for name in row if not is_time_column(name)} for row in rows]


def require_as_alone(job: Job, ended: Ended, trials: dict[str, Sequence[str]]) -> None:
    """Compare each trial, by its label, with `lorarl run` and the same values."""
    for place, (label, values) in enumerate(trials.items()):
        alone = job.start(*values, "checkpoint.uri=file:alone", out=job.folder / f"alone-{place}").end()
        assert alone.code == 0, alone
        assert of_trial(ended, label) == (alone.adapter_digest, alone.rows_but_for_times), label
        (job.folder / "alone").rename(job.folder / f"alone-checkpoints-{place}")


def wait_for_step(running: Running, label: str, step: int) -> None:
    path = running.out / label / "metrics.jsonl"
    running.wait_until(lambda: any(row["step"] >= step for row in read_rows(path)), f"{label} made step {step}")


def trials_process(running: Running, label: str) -> psutil.Process:
    [process] = [
        one for one in running.processes(f"{running.out.name}/{label}") if "lorarl_trainer.cli run" in name(one)
    ]
    return process


def name(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def test_trials_share_a_worker_and_those_with_a_critic_another_one(job: Job) -> None:
    short(job)
    running = sweep(job, "trainer.seed=3,4", "trainer.learningRate=1e-3,5e-3", "algorithm.type=grpo,ppo")
    running.wait_until(lambda: running.processes(WORKER), "the shared worker was there")
    ended = running.end()
    assert ended.code == 0, ended
    assert ended.stdout.count("starting the worker that trials share") == 2 and "without sharing" not in ended.stdout
    assert ended.stdout.count(": done") == 8 and ended.left_running == [] and ended.left_in_memory == []
    values = [(3, "1e-3", "grpo"), (3, "5e-3", "grpo"), (4, "1e-3", "grpo"), (3, "1e-3", "ppo"), (4, "5e-3", "ppo")]
    require_as_alone(
        job,
        ended,
        {
            f"seed={seed},learningRate={rate},type={kind}": (
                *(f"trainer.seed={seed}", f"trainer.learningRate={rate}", f"algorithm.type={kind}"),
            )
            for seed, rate, kind in values
        },
    )


def test_lost_drivers_and_workers_cost_no_other_trial_and_no_byte(job: Job) -> None:
    """A trial's process is killed, and then the worker; the same command continues what is missing."""
    short(job)
    running = sweep(job, "trainer.seed=3,4,5")
    wait_for_step(running, "seed=3", 1)
    trials_process(running, "seed=3").kill()
    running.wait_for_output("seed=3: ended with exit code -9")
    wait_for_step(running, "seed=4", 2)
    job.gate.touch()
    worker = running.processes(WORKER)[0]
    worker.kill()
    running.wait_for_output("lost its worker, and starts again from its newest checkpoint")
    job.gate.unlink()
    ended = running.end()
    assert ended.code == 1, ended
    assert "seed=4: done" in ended.stdout and "seed=5: done" in ended.stdout
    assert ended.stdout.count("starting the worker that trials share") == 2
    assert ended.left_running == [] and ended.left_in_memory == []
    again = sweep(job, "trainer.seed=3,4,5").end()
    assert again.code == 0 and "seed=3: done" in again.stdout, again
    assert again.left_running == []
    require_as_alone(job, again, {f"seed={seed}": (f"trainer.seed={seed}",) for seed in (3, 4, 5)})


def test_ctrl_c_lets_each_trial_publish_and_a_fault_stops_no_other(job: Job) -> None:
    short(job)
    over = "trainer.seed=3,4", "reward.function=letters:score,letters:broken"
    running = sweep(job, *over, at_once=4)
    running.wait_for_output("seed=4,function=letters:broken: ended with exit code 1")
    for seed in (3, 4):
        wait_for_step(running, f"seed={seed},function=letters_score", 1)
    running.signal(signal.SIGINT)
    ended = running.end()
    assert ended.code == 75 and "Run the same command again to continue." in ended.stdout, ended
    assert ended.left_running == [] and ended.left_in_memory == []
    for seed in (3, 4):
        assert read_summary(ended.out / f"seed={seed},function=letters_score")["state"] == "interrupted"
    again = sweep(job, *over, at_once=4).end()
    assert again.code == 1 and again.stdout.count("letters:score: done") == 2, again
    assert "no letter is good enough" in again.stdout and "starting the worker" in again.stdout
    require_as_alone(job, again, {f"seed={seed},function=letters_score": (f"trainer.seed={seed}",) for seed in (3, 4)})
    assert again.left_running == []


def test_a_sweep_that_is_killed_leaves_nothing_running(job: Job) -> None:
    short(job)
    running = sweep(job, "trainer.seed=3,4", at_once=2)
    wait_for_step(running, "seed=3", 1)
    running.signal(signal.SIGKILL)
    ended = running.end()
    assert ended.left_running == [] and ended.left_in_memory == []
    assert read_summary(ended.out / "seed=3")["state"] == "interrupted"
    assert (job.folder / "checkpoints/letters-seed-3/latest.json").exists()
