"""A run without an interruption: what a person sees, and what remains."""

from __future__ import annotations

import json
import re

import pytest

from run.command import Ended, digest, local_folder
from run.jobs import EVERY, NAME, REWARD, STEPS, Job, published_steps

PHASES = {"generate", "reward", "forward_backward", "optimizer", "sync", "checkpoint", "evaluate", "other"}


def test_a_run_leaves_its_files_and_nothing_else(reference: Ended) -> None:
    files = {path.name for path in reference.out.iterdir()}
    assert {"metrics.jsonl", "run_summary.json", "report.html", "reward.png", "tensorboard", "logs"} <= files
    assert reference.left_running == []
    assert reference.left_in_memory == []


def test_every_step_is_a_row_and_its_phases_are_the_whole_step(reference: Ended) -> None:
    assert [row["step"] for row in reference.rows] == list(range(STEPS + 1)), "step 0 is the evaluation before training"
    steps = reference.rows[1:]
    for row in steps:
        assert set(row["seconds"]) <= PHASES
        assert {"generate", "reward", "forward_backward", "optimizer", "sync"} <= set(row["seconds"])
        training = sum(seconds for phase, seconds in row["seconds"].items() if phase != "evaluate")
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / training, rel=1e-3)
        assert row["mean_abs_logprob_diff"] < 1e-5
        assert row["reward_failures"] == 0
    assert [row["step"] for row in reference.rows if "eval_score" in row] == [*range(0, STEPS, 5), STEPS]
    assert sum(sum(row["seconds"].values()) for row in steps) < reference.summary["total_seconds"] < reference.seconds


def test_the_start_is_reported_part_by_part(reference: Ended) -> None:
    startup = reference.summary["startup"]
    # Nothing waits for the devices: before they are reserved, the worker's process is there and imports.
    waited_for = {"process", "Ray", "worker process", "imports", "trainer", "engine"}
    assert waited_for | {"first generation", "first update"} <= set(startup["waited_for"])
    assert abs(sum(startup["waited_for"].values()) - startup["first_update_seconds"]) < 0.1
    assert startup["waited_for"]["other"] < 0.25 * startup["first_update_seconds"], startup
    assert 0 < startup["first_token_seconds"] < startup["first_update_seconds"] < reference.seconds
    assert "first token after" not in reference.stdout, "it is for the report"


def test_the_report_is_named_before_the_wait_and_at_the_end(reference: Ended) -> None:
    lines, folder = reference.stdout.splitlines(), reference.out.relative_to(reference.out.parents[1])
    assert f"live report: lorarl open {folder}, in another terminal" in lines[:3]
    end = next(index for index, line in enumerate(lines) if line.startswith("succeeded"))
    assert (
        f"Report    lorarl open {folder}, or the file {folder}/report.html; its numbers are in {folder}/metrics.jsonl"
        in lines[end:]
    )


def test_a_finished_job_says_so_before_anything_starts(reference: Ended, reference_job: Job) -> None:
    rows = reference.rows
    again = reference_job.run()
    assert again.code == 0, again
    assert again.stdout.startswith(f"job {NAME} is finished: all {STEPS} steps are done")
    assert "starting Ray" not in again.stdout and reference.adapter_uri in again.stdout
    assert again.rows == rows, "nothing is trained, and nothing is lost"


def test_a_healthy_run_s_log_has_no_traceback(reference: Ended) -> None:
    log = (reference.out / "logs" / "worker-0.log").read_text()
    assert log
    assert "Traceback" not in log


def test_the_reward_grows(reference: Ended) -> None:
    rewards = [row["reward_mean"] for row in reference.rows[1:]]
    assert sum(rewards[-3:]) > 1.5 * sum(rewards[:3]), rewards


def test_every_checkpoint_is_published_and_whole(reference: Ended, reference_job: Job) -> None:
    assert published_steps(reference_job.checkpoints) == list(range(EVERY, STEPS + 1, EVERY))
    assert json.loads((reference_job.checkpoints / "latest.json").read_text())["finishedAt"]
    adapter = local_folder(reference.adapter_uri)
    assert adapter == reference_job.checkpoints / f"iter_{STEPS:07}" / "lora_adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 4, 8)


def test_an_adapter_comes_with_tokenizer_card_and_what_it_was_made_of(reference: Ended) -> None:
    adapter = local_folder(reference.adapter_uri)
    metadata = json.loads((adapter / "lorarl_metadata.json").read_text())
    assert metadata["manifest"]["spec"]["trainer"] == {"steps": STEPS, "learningRate": 5.0e-3}
    assert metadata["data"]["train"]["rows"] == 8
    assert metadata["rewardCode"] == {"letters:score": digest(REWARD)}
    assert (adapter / "tokenizer.json").exists()
    card = (adapter / "README.md").read_text()
    first, last = reference.rows[0], reference.rows[-1]
    assert f"| reward_mean |  | {last['reward_mean']:.4g} |" in card
    assert f"| eval_score | {first['eval_score']:.4g} | {last['eval_score']:.4g} |" in card
    assert "library_name: peft" in card


def test_without_a_terminal_output_is_plain_lines(reference: Ended) -> None:
    lines = reference.stdout.splitlines()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", reference.stdout), "no control characters"
    assert len([line for line in lines if line.startswith("step ") and "reward" in line]) == STEPS
    assert len([line for line in lines if line.startswith("checkpoint of step ")]) == STEPS // EVERY
    assert lines[-1].split() == ["Adapter", reference.adapter_uri]
    # Below PEFT are lines of Python, which have no label.
    labelled = [line.split()[0] for line in lines if re.match(r"succeeded |[A-Z]\w+ {2,}|(PEFT|vLLM) ", line)]
    assert labelled[-6:] == [
        "succeeded",
        "Report",
        "Next",
        "PEFT",
        "vLLM",
        "Adapter",
    ]


def test_libraries_say_nothing(reference: Ended) -> None:
    assert reference.stderr == ""
    log = (reference.out / "logs" / "worker-0.log").read_text()
    assert "Traceback" not in log, "a healthy run has no errors in its log"


def test_the_report_stands_alone(reference: Ended) -> None:
    html = (reference.out / "report.html").read_text()
    assert "letters" in html
    assert not re.search(r"""(src|href)=["']https?:""", html), "it loads nothing"
