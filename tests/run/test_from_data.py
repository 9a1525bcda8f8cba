"""`lorarl run` without rollouts to train on: pairs, evaluated as such and by what the model writes."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from run.jobs import PROMPTS, Job

STEPS = 8


def pairs(prompts: list[str]) -> str:
    rows = [
        {"prompt": prompt, "chosen": word, "rejected": word.upper()}
        for prompt in prompts
        for word in ("aha", "so it is", "maybe")
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def preferring(folder: Path, base: Path) -> Job:
    """A job that learns to prefer small letters, and scores what it writes by them."""
    job = Job(folder, base)
    spec = yaml.safe_load((job.folder / "job.yaml").read_text())
    del spec["spec"]["reward"]
    spec["spec"] |= {
        "algorithm": {"type": "dpo"},
        "data": {
            "train": {"uri": "file:train.jsonl"},
            "eval": {"uri": "file:pairs.jsonl", "every": 4},
            "evals": [
                {"name": "written", "uri": "file:held_out.jsonl", "every": 8, "reward": {"function": "letters:score"}}
            ],
        },
    }
    spec["spec"]["rollout"]["promptsPerStep"] = 12
    spec["spec"]["trainer"] = {"steps": STEPS, "learningRate": 5.0e-3}
    (job.folder / "job.yaml").write_text(yaml.safe_dump(spec))
    (job.folder / "train.jsonl").write_text(pairs(PROMPTS))
    (job.folder / "pairs.jsonl").write_text(pairs(["and what else"]))
    return job


def test_dpo_learns_from_pairs_and_is_scored_by_what_it_writes(tmp_path: Path, base: Path) -> None:
    ended = preferring(tmp_path, base).run()
    assert ended.code == 0, ended.stderr
    rows = {row["step"]: row for row in ended.rows}
    assert rows[STEPS]["preference/accuracy"] > 0.95 > rows[1]["preference/accuracy"]
    assert rows[STEPS]["loss"] < rows[1]["loss"]
    assert rows[STEPS]["eval_score"] == 1.0 and rows[STEPS]["eval_margin"] > 0
    assert [step for step, row in rows.items() if "eval_score" in row] == [0, 4, 8]
    assert [step for step, row in rows.items() if "eval_written/score" in row] == [0, 8]
    assert rows[STEPS]["eval_written/score"] > rows[0]["eval_written/score"]
    assert "generate" not in rows[1]["seconds"], "the training generates nothing"
    assert (ended.out / "accuracy.png").exists() and not (ended.out / "reward.png").exists()
    assert "accuracy 1.000" in ended.stdout
    report = (ended.out / "report.html").read_text()
    assert "preference/margin" in report and "Pairs in the right order" in report
