"""Bad input that only workers can find, and rewards that fail: one sentence says so; training continues if it can."""

from __future__ import annotations

import json
import shutil

from run.command import Ended
from run.jobs import PROMPTS, Job, published_steps


def test_a_target_module_that_the_model_does_not_have(job: Job) -> None:
    ended = job.run("adapter.targetModules=[q_proj, gate]")
    require_one_message(ended)
    assert "spec.adapter.targetModules: got 'gate', expected a linear layer of this model (" in ended.stderr
    assert "q_proj" in ended.stderr
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_an_architecture_that_is_not_known(job: Job) -> None:
    model = job.folder / "unknown"
    shutil.copytree(job.base, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["HyenaForCausalLM"]}))
    ended = job.run("model.uri=file:unknown")
    require_one_message(ended)
    assert "HyenaForCausalLM" in ended.stderr
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_samples_longer_than_the_model_takes(job: Job) -> None:
    ended = job.run("rollout.maxResponseTokens=5000")
    require_one_message(ended)
    assert "spec.rollout.maxResponseTokens: got 5000, with rollout.maxPromptTokens 64, for a model of " in ended.stderr


def test_weights_that_are_garbage_end_the_run_in_one_line_and_the_traceback_is_in_the_log(job: Job) -> None:
    model = job.folder / "garbage"
    shutil.copytree(job.base, model)
    (model / "model.safetensors").write_bytes(b"garbage")
    ended = job.run("model.uri=file:garbage")
    require_one_message(ended)
    log = ended.out / "logs" / "worker-0.log"
    assert "lorarl: a worker failed: " in ended.stderr
    assert f"The worker's output is in {log.relative_to(job.folder)}." in ended.stderr
    assert "ray::CheckpointingWorker.start() (pid=" in log.read_text()
    assert "\x1b[36mray::" not in ended.stderr + log.read_text()
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_an_adapter_of_other_modules_to_start_from(job: Job, reference: Ended, reference_job: Job) -> None:
    adapter = reference_job.checkpoints / "iter_0000002" / "lora_adapter"
    ended = job.run("adapter.targetModules=[q_proj, v_proj]", f"adapter.initFrom={adapter.as_uri()}")
    require_one_message(ended)
    assert "spec.adapter.initFrom: got " in ended.stderr
    assert not job.checkpoints.exists(), "nothing was claimed"


def test_completions_whose_reward_fails_are_left_out_and_counted(job: Job) -> None:
    faults = ["raise", "hang", "nan", "crash"]
    job.write_rows(
        [
            {"prompt": prompt, "fault": fault}
            for prompt, fault in zip(PROMPTS, [*faults, None, None, None, None], strict=True)
        ]
    )
    # Every step has all eight prompts, with four completions each.
    ended = job.run(
        "reward.function=letters:faulty",
        "reward.timeoutSeconds=1.5",
        "rollout.promptsPerStep=8",
        "trainer.steps=2",
        "algorithm.updatesPerStep=8",
    )
    assert ended.code == 0, ended
    # An update without samples is left out: the first that has some is the one that is compared with vLLM.
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
    assert ended.stdout.count("16 rewards failed") == 2
    assert ended.left_running == []


def require_one_message(ended: Ended) -> None:
    """One line for a person, on standard error alone."""
    assert ended.code == 1, ended
    assert ended.stderr.startswith("lorarl: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.left_running == []
    assert ended.left_in_memory == []


def test_an_evaluation_that_fails_takes_no_finished_step_with_it(job: Job) -> None:
    """Nor the checkpoint that is still on its way to the store when the run ends."""
    (job.folder / "held_out.jsonl").write_text(
        json.dumps({"prompt": "and what else", "fault": "raise the second time"}) + "\n"
    )
    ended = job.run("reward.function=letters:faulty", "trainer.steps=3", "data.eval.every=100", "checkpoint.every=100")
    require_one_message(ended)
    assert "no score for any of 1 completions" in ended.stderr
    assert 'class="state failed"' in (job.out / "report.html").read_text()
    assert published_steps(job.checkpoints) == [3]
    assert (ended.summary["step"], [row["step"] for row in ended.rows]) == (3, [0, 1, 2, 3])
    # What it owes is made up for.
    (job.folder / "asked-before").unlink()
    again = job.run("reward.function=letters:faulty", "trainer.steps=3", "data.eval.every=100", "checkpoint.every=100")
    assert again.code == 0, again
    assert (again.rows[-1]["step"], again.rows[-1]["eval_score"] is not None) == (3, True)
    assert again.adapter_uri == (job.checkpoints / "iter_0000003" / "lora_adapter").as_uri()
