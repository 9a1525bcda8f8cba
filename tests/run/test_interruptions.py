"""A training that is killed, terminated and interrupted ends in the bytes of one that was not.

The same command runs one job five times. Each test is one interruption and continues where the one before left the job.
"""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from run.command import Ended
from run.jobs import STEPS, Job, published, published_steps

pytestmark = pytest.mark.both_backends

ENDED_BY_KILL = -signal.SIGKILL


def test_a_killed_run_leaves_no_process_and_whole_checkpoints(interrupted_job: Job) -> None:
    run = interrupted_job.start()
    run.wait_for_step(random.Random(3).randint(5, 7))
    # Here and below: the run stands still within one of the next steps, so it does not end first.
    interrupted_job.gate.touch()
    run.wait_until(lambda: len(published(interrupted_job)) >= 2, "two checkpoints were published")
    run.kill()
    ended = run.end()
    interrupted_job.gate.unlink()
    assert ended.code == ENDED_BY_KILL
    assert ended.left_running == []
    assert published_steps(interrupted_job.checkpoints)[:2] == [2, 4]


def test_a_checkpoint_cut_short_is_skipped_and_sigterm_publishes_one(interrupted_job: Job) -> None:
    """The file lacks one byte. The checkpoint that is published is of the step just done.

    SIGTERM reaches all that is in the command's process group, as `timeout` sends it.
    """
    before = published_steps(interrupted_job.checkpoints)
    state = newest(interrupted_job) / "trainer_state" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])

    run = interrupted_job.start()
    run.wait_for_output(f"resuming after step {before[-2]}")
    assert f"Skipped {newest(interrupted_job).as_uri()}: trainer_state/state.safetensors has" in run.stdout
    run.wait_for_step(8)
    interrupted_job.gate.touch()
    run.signal_group(signal.SIGTERM)
    run.wait_for_output("SIGTERM: finishing this step")
    interrupted_job.gate.unlink()
    ended = run.end()

    assert ended.code == 75, ended
    step = ended.summary["step"]
    assert 8 <= step < STEPS
    assert ended.rows[-1]["step"] == step == published_steps(interrupted_job.checkpoints)[-1]
    assert "SIGTERM: finishing this step, then publishing a checkpoint" in ended.stdout
    assert f"interrupted after step {step}" in ended.stdout
    assert f"the same command resumes from the newest checkpoint, {newest(interrupted_job).as_uri()}" in ended.stdout
    assert ended.left_running == []
    assert ended.left_in_memory == []


def test_an_interrupted_start_denies_no_checkpoint_that_is_there(interrupted_job: Job) -> None:
    """The run has read no checkpoint yet. What it says comes from the store."""
    run = interrupted_job.start()
    run.wait_until((interrupted_job.out / "logs" / "worker-0.log").exists, "the worker began")
    run.wait_for_output("starting Ray")
    run.signal(signal.SIGTERM)
    ended = run.end()
    assert ended.code == 75, ended
    assert "interrupted before the first step finished" in ended.stdout
    assert f"the same command resumes from the newest checkpoint, {newest(interrupted_job).as_uri()}" in ended.stdout


def test_a_garbage_latest_json_is_told_and_ctrl_c_twice_ends_at_once(interrupted_job: Job) -> None:
    before = published_steps(interrupted_job.checkpoints)
    (interrupted_job.checkpoints / "latest.json").write_text("{ garbage")

    run = interrupted_job.start("reward.timeoutSeconds=121", terminal=True)
    run.wait_for_output(f"resuming after step {before[-1]}; reward.timeoutSeconds 120 -> 121")
    assert f"checkpoint of step {before[-1]}:" not in run.stdout, "it is no new one"
    assert "latest.json is corrupt" in run.stdout
    run.wait_for_step(before[-1] + 1)
    interrupted_job.gate.touch()
    run.press_ctrl_c()
    run.wait_for_output("Ctrl-C again stops at once")
    run.press_ctrl_c()
    ended = run.end()

    assert ended.code == 130, ended
    assert "stopped at once; the same command resumes from the newest checkpoint" in ended.stdout
    assert ended.left_running == []
    assert ended.left_in_memory == []
    assert published_steps(interrupted_job.checkpoints)[-1] >= before[-1]
    for noise in ("SIGTERM handler", "Token authentication", "Traceback", "never retrieved"):
        assert noise not in ended.stdout


def test_a_worker_that_is_killed_ends_the_run_with_the_end_of_its_log(interrupted_job: Job) -> None:
    interrupted_job.gate.unlink(missing_ok=True)
    before = published_steps(interrupted_job.checkpoints)
    run = interrupted_job.start()
    run.wait_for_output(f"resuming after step {before[-1]}")  # until then metrics.jsonl has the earlier run's steps
    run.wait_for_step(before[-1] + 1)
    interrupted_job.gate.touch()
    # The test waits for it because Ray changes the process's title with each call.
    [worker] = run.wait_until(lambda: run.processes("ray::CheckpointingWorker"), "its worker was seen")
    worker.kill()
    interrupted_job.gate.unlink()
    ended = run.end()
    assert ended.code == 1, ended
    assert "a worker process ended" in ended.stderr
    assert "worker-0.log" in ended.stderr
    told = [line for line in ended.stderr.splitlines() if not line.startswith("  | ")]
    assert len(told) == 1, "beside the end of the log one sentence"
    assert "raylet" not in ended.stdout
    assert ended.summary["state"] == "failed"
    assert f"; the same command resumes from the newest checkpoint, {newest(interrupted_job).as_uri()}" in ended.stdout
    assert len(list((interrupted_job.out / "starts").iterdir())) == 4, "one for each start that trained"
    assert ended.left_running == []


def test_the_same_command_goes_on_to_the_same_bytes(interrupted_job: Job, reference: Ended) -> None:
    interrupted_job.gate.unlink(missing_ok=True)
    ended = interrupted_job.run()
    assert ended.code == 0, ended
    assert ended.adapter_digest == reference.adapter_digest
    assert ended.rows_but_for_times == reference.rows_but_for_times


def newest(job: Job) -> Path:
    return job.checkpoints / str(json.loads((job.checkpoints / "latest.json").read_text())["path"])


@pytest.fixture(scope="module")
def interrupted_job(base: Path, backend: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("interrupted"), base, backend=backend)
