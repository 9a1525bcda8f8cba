"""`lorarl run` with a taskset of verifiers: a dry run shows a task, and it is trained, resumed and evaluated."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from run.command import COMMAND
from run.jobs import Job
from run.test_environments import STEPS, whole_as_resumed
from support.verifiers import TASKSETS, needs_verifiers


@needs_verifiers
@pytest.mark.long
def test_a_taskset_is_trained_and_resumed_in_the_same_bytes(tmp_path: Path, base: Path) -> None:
    """Without a run: tests/unit/trainer/rewards/environment/test_tasksets.py."""
    whole, resumed = (_tasks(tmp_path / name, base) for name in ("whole", "resumed"))
    looked = subprocess.run(
        [*COMMAND, "job.yaml", "--dry-run"], cwd=whole.folder, capture_output=True, text=True, check=False
    )
    assert looked.returncode == 0, looked.stderr
    assert "<|im_start|>user\n  | say 0<" in looked.stdout, looked.stdout
    ended = whole_as_resumed(whole, resumed)
    rows = [row for row in ended.rows if "reward_mean" in row]
    assert "reward/long" in rows[0] and all(row["episode/turns"] == 1 for row in rows)
    assert sum(row["reward_failures"] for row in rows) > 0, "of the task that fails"
    scored = subprocess.run(
        [*COMMAND[:-1], "evaluate", ended.out, "--json"], cwd=whole.folder, capture_output=True, text=True, check=False
    )
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["score"]["adapter"]["mean"] == ended.summary["eval_after"]
    whole.change(data={"train": {"episodes": {"size": 16}}})
    many = subprocess.run(
        [*COMMAND, "job.yaml", "--dry-run"], cwd=whole.folder, capture_output=True, text=True, check=False
    )
    assert many.returncode == 1
    assert "spec.data.train.episodes: got tasks 0 to 15 of vowels-v1, which has 10" in many.stderr


def _tasks(folder: Path, base: Path) -> Job:
    """A job with a taskset beside its manifest."""
    job = Job(folder, base)
    shutil.copy(TASKSETS / "vowels_v1.py", job.folder)
    job.change(
        reward=None,
        environment={"verifiers": "vowels-v1", "timeoutSeconds": 120},
        data={"train": {"episodes": {"size": 8}}, "eval": {"episodes": {"size": 2, "seed": 8}, "every": 1}},
        rollout={"maxPromptTokens": 64, "maxResponseTokens": 60, "stop": ["a", "e", "i", " "]},
        trainer={"steps": STEPS},
    )
    return job
