"""`lorarl run` whose completions are made by engines beside the trainer's processes: vLLM's own server on the CPU."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from run.command import COMMAND, Running, kill_with_engine
from run.engines import CORRECTED, SERVER, requests_of, steps_of, warnings
from run.jobs import Job, published

ROOT = Path(__file__).resolve().parents[2]


def separate(base: Path, folder: Path, steps: int, **rollout: Any) -> Job:
    """A job with one engine beside the trainer."""
    job = Job(folder, base)
    job.change(rollout={"separateEngines": {}, "serverTimeoutSeconds": 200.0, **rollout}, trainer={"steps": steps})
    if rollout.get("maxStaleness"):
        job.change(algorithm=CORRECTED)
    return job


def engine(run: Running) -> psutil.Process:
    """The process of the run's engine that answers."""
    [process] = [one for one in run.processes(SERVER) if "--port" in one.cmdline()]
    return process


def test_the_example_says_what_an_engine_takes(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "out/addition"
    data.mkdir(parents=True)
    for name in ("train", "held_out"):
        (data / f"{name}.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")
    example = ROOT / "examples/separate-engines-cpu.yaml"
    command = [*COMMAND, "--dry-run", example, "--set", f"spec.model.uri=file://{base}"]
    looked = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "memory of each of 1 separate engine(s):" in looked, looked
    assert "its buffers for 2 of rank 16 at a time" in looked, "one more than maxStaleness"


@pytest.mark.long
def test_a_run_learns_with_its_own_engine_also_after_a_kill(base: Path, tmp_path: Path) -> None:
    """kill -9 of the driver leaves no engine. The next start has another one, and continues."""
    job = separate(base, tmp_path / "job", 16)
    run = job.start()
    run.wait_for_step(3)
    job.gate.touch()
    run.wait_until(lambda: published(job), "a checkpoint was published")
    assert run.processes(SERVER)
    run.kill()
    assert run.end().left_running == []
    job.gate.unlink()

    ended = job.run()
    assert ended.code == 0 and ended.left_running == [], ended
    assert "resuming after step" in ended.stdout
    steps = steps_of(ended)
    assert [row["step"] for row in steps] == list(range(1, 17))
    assert all(row["mean_abs_logprob_diff"] < 1e-5 for row in steps)
    rewards = [row["reward_mean"] for row in steps]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.1, rewards
    assert "separateEngines" not in warnings(ended)
    assert not (ended.out / "served").exists()


@pytest.mark.long
def test_an_engine_that_is_killed_comes_back_and_no_step_is_lost(base: Path, tmp_path: Path) -> None:
    """It is killed while it generates, and the run is ended after it is back. What is ahead is generated again."""
    job = separate(base, tmp_path / "job", 10, maxStaleness=1, maxResponseTokens=90)
    run = job.start()
    run.wait_for_step(2)
    killed = engine(run)
    run.wait_until(lambda: requests_of(killed) > 0, "the engine generates")
    kill_with_engine(killed.pid)
    run.wait_for_output("It is started again, for the 1st time in this run")
    run.wait_for_output("serves again")
    run.signal(signal.SIGTERM)
    ended = run.end()
    assert ended.code == 75 and ended.left_running == [], ended
    told = warnings(ended)
    assert "spec.rollout.separateEngines: engine 0 (http://127.0.0.1:" in told and "was ended by SIGKILL" in told
    assert {file.name for file in (ended.out / "logs").glob("engine-*")} == {"engine-0.log", "engine-0-restart-1.log"}
    assert "cannot be reached" in told and told.count("is started again") == 1, told

    ended = job.run()
    assert ended.code == 0 and "resuming after step" in ended.stdout, ended
    steps = steps_of(ended)
    assert [row["step"] for row in steps] == list(range(1, 11))
    assert max(row["staleness/max"] for row in steps) == 1.0
    assert any(row["staleness/hidden_seconds"] > 0 for row in steps)
    assert not (ended.out / "served").exists()


@pytest.mark.long
def test_an_engine_that_does_not_start_stops_the_run_with_what_it_said(base: Path, tmp_path: Path) -> None:
    job = separate(base, tmp_path / "job", 2)
    job.environment["VLLM_LOGGING_LEVEL"] = "NONSENSE"
    ended = job.run()
    assert ended.code == 1 and not ended.rows and ended.left_running == [], ended
    assert "spec.rollout.separateEngines: engine 0 ended with code 1; it said: " in ended.stderr
    assert "NONSENSE" in ended.stderr and "engine-0.log" in ended.stderr
