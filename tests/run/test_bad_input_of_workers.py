"""Bad input that only the workers can find, and rewards that fail: one sentence, and no finished step is lost.

tests/trainer/test_bad_input.py tests what else a worker refuses.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_lines
from run.command import Ended
from run.jobs import PROMPTS, Job, published_steps, spoil_model

FAULTY = (
    "reward.function=letters:faulty",
    "reward.timeoutSeconds=1.5",
    "rollout.promptsPerStep=8",  # every step has all eight prompts, with four completions each
    "trainer.steps=2",
    "algorithm.updatesPerStep=8",
    "data.eval.every=100",
    "checkpoint.every=100",
)


def test_a_model_that_only_a_worker_finds_wrong(job: Job) -> None:
    """The run ends with one line, and the traceback is in the log."""
    model = job.folder / "garbage"
    shutil.copytree(job.base, model)
    spoil_model(model)
    ended = job.run("model.uri=file:garbage")
    require_one_message(ended)
    log = ended.out / "logs" / "worker-0.log"
    assert "lorarl: a worker failed: " in ended.stderr
    assert f"The worker's output is in {log.relative_to(job.folder)}." in ended.stderr
    assert "ray::CheckpointingWorker.start() (pid=" in log.read_text()
    assert "\x1b[36mray::" not in ended.stderr + log.read_text()
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_completions_whose_reward_fails_are_left_out_and_counted(faulty_run: Ended) -> None:
    ended = faulty_run
    # An update without samples is skipped: the first one with samples is compared with vLLM.
    assert all(row["mean_abs_logprob_diff"] > 0 and row["entropy"] > 0.1 for row in ended.rows if row["step"])
    assert [row["reward_failures"] for row in ended.rows if row["step"]] == [16, 16]
    assert all(row["reward_mean"] is not None and row["grad_norm"] > 0 for row in ended.rows if row["step"])
    for cause, told in (
        ("exception", "ValueError: no small letters in here (letters.py, line"),
        ("timeout", "took more than 1.5 s"),
        ("non_finite", "returned nan"),
        ("crash", "the process exited with code 3"),
    ):
        warnings = [line for line in ended.stdout.splitlines() if line.startswith("warning: ") and f"({cause})" in line]
        assert len(warnings) == 1, "once for the run"
        assert f"warning: 4 completions could not be scored and are left out ({cause}): {told}" in warnings[0]
    assert ended.stdout.count("(16 of 32 scored)  signal 4/8") == 2
    assert ended.left_running == []


def test_components_reach_metrics_and_samples(faulty_run: Ended) -> None:
    steps = [row for row in faulty_run.rows if row["step"]]
    assert all(row["reward/length"] > 0 and row["signal_share"] == 0.5 for row in steps)
    assert "eval_reward/length" in faulty_run.rows[0]
    samples = read_lines(faulty_run.out / "samples.jsonl")
    assert {tuple(sample["components"]) for sample in samples} == {(), ("length", "cut_off")}
    assert all(sample["components"].get("cut_off", sample["truncated"]) == sample["truncated"] for sample in samples)
    assert "exception: ValueError: no small letters in here (letters.py, line" in str(samples[1]["failure"])


def test_what_a_reward_prints_is_in_its_own_log(faulty_run: Ended) -> None:
    log = (faulty_run.out / "logs" / "rewards.log").read_text()
    assert log.count("prompt: sing\n") >= 8
    assert "a warning of the reward's library\n" in log
    assert log.count("ValueError: no small letters in here\n") in range(1, 9), (
        "a traceback for each process, not each time"
    )
    assert "prompt:" not in faulty_run.stdout + faulty_run.stderr
    assert "library" not in faulty_run.stdout + faulty_run.stderr


def test_an_evaluation_that_fails_takes_no_finished_step_with_it(faulty_job: Job, faulty_run: Ended) -> None:
    """Nor the checkpoint that is still being uploaded when the run ends. The next start makes up for the evaluation."""
    ended, job = faulty_run, faulty_job
    require_one_message(ended)
    assert "no score for any of 1 completions" in ended.stderr
    assert '"state":"failed"' in (job.out / "report.html").read_text()
    assert published_steps(job.checkpoints) == [2]
    assert (ended.summary["step"], [row["step"] for row in ended.rows]) == (2, [0, 1, 2])
    (job.folder / "asked-before").unlink()
    again = job.run(*FAULTY)
    assert again.code == 0, again
    assert (again.rows[-1]["step"], again.rows[-1]["eval_score"] is not None) == (2, True)
    assert again.adapter_uri == (job.checkpoints / "iter_0000002" / "lora_adapter").as_uri()


@pytest.mark.long
def test_several_rewards_of_which_one_fails_too_often(faulty_job: Job, tmp_path: Path) -> None:
    """The evaluation before the first step is recorded by reward; the first step ends the run."""
    job = Job(tmp_path, faulty_job.base)
    shutil.copy(faulty_job.folder / "train.jsonl", job.folder)
    shutil.copy(faulty_job.folder / "held_out.jsonl", job.folder)
    letters = "{name: letters, weight: 2, function: 'letters:score'}"
    faulty = "{name: faulty, weight: -1, function: 'letters:faulty', timeoutSeconds: 1.5, maxFailedShare: 0.4}"
    ended = job.run("reward=null", f"rewards=[{letters}, {faulty}]", *FAULTY[2:])
    require_one_message(ended)
    assert "spec.rewards[1].maxFailedShare: got 16 of 32 completions without a score in step 1" in ended.stderr
    assert "x, exception: faulty: ValueError: no small letters in here (letters.py, line" in ended.stderr
    (row,) = ended.rows
    assert row["eval_score"] == row["eval_reward/letters"] == row["eval_reward/faulty"], "2 - 1 times the same"
    assert "eval_reward/faulty/length" in row
    assert ended.summary["state"] == "failed"


@pytest.fixture(scope="module")
def faulty_job(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A job with four prompts whose rewards fail, each in its own way, and an evaluation that fails the second time."""
    job = Job(tmp_path_factory.mktemp("faulty"), base)
    faults = ["raise", "hang", "nan", "crash", None, None, None, None]
    job.write_rows([{"prompt": prompt, "fault": fault} for prompt, fault in zip(PROMPTS, faults, strict=True)])
    (job.folder / "held_out.jsonl").write_text(
        json.dumps({"prompt": "and what else", "fault": "raise the second time"}) + "\n"
    )
    return job


@pytest.fixture(scope="module")
def faulty_run(faulty_job: Job) -> Ended:
    """Its first run: two steps, then an evaluation that fails."""
    return faulty_job.run(*FAULTY)


def require_one_message(ended: Ended) -> None:
    """One line for a person, only on standard error."""
    assert ended.code == 1, ended
    assert ended.stderr.startswith("lorarl: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.left_running == []
    assert ended.left_in_memory == []
