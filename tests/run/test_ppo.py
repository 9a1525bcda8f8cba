"""`lorarl run` with PPO: the policy and its critic learn, and the run says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lorarl_trainer.progress import read_rows
from run.command import COMMAND
from run.jobs import Job

STEPS = 8
ROOT = Path(__file__).resolve().parents[2]


def test_ppo_learns_and_says_what_its_critic_explains(tmp_path: Path, base: Path) -> None:
    job = Job(tmp_path, base)
    job.change(
        algorithm={
            "type": "ppo",
            "groupSize": 1,
            "updatesPerStep": 4,
            "ppo": {"criticLearningRate": 1.0e-3, "criticWarmupSteps": 2},
        },
        rollout={"promptsPerStep": 32},
        trainer={"steps": STEPS, "learningRate": 5.0e-3},
    )
    ended = job.run()
    assert ended.code == 0, ended.stderr
    rows = {row["step"]: row for row in ended.rows}
    assert rows[STEPS]["reward_mean"] > rows[1]["reward_mean"] + 0.05
    assert rows[2]["grad_norm"] == 0 < rows[3]["grad_norm"], "the critic learns alone first"
    assert rows[1]["critic/value"] == 0
    assert rows[STEPS]["critic/value"] == pytest.approx(rows[STEPS]["critic/return"], rel=0.3)
    assert "critic explains " in ended.stdout
    report = (ended.out / "report.html").read_text()
    assert "critic/explained_variance" in report and "What the critic explains" in report
    newest = json.loads((job.checkpoints / "latest.json").read_text())["checkpoints"][-1]
    state = json.loads((job.checkpoints / newest / "trainer_state/state.json").read_text())
    assert (state["updates"], state["criticUpdates"]) == (4 * (STEPS - 2), 4 * STEPS)


@pytest.mark.long
def test_the_example_gains_twenty_points_and_its_critic_explains(tmp_path: Path) -> None:
    out = tmp_path / "out/addition"
    subprocess.run([sys.executable, ROOT / "examples/addition/make_base.py", "--out", out], check=True)
    command = [*COMMAND, ROOT / "examples/ppo-cpu.yaml", "--out", tmp_path / "run"]
    subprocess.run(command, check=True, cwd=tmp_path)
    rows = read_rows(tmp_path / "run/metrics.jsonl")
    scores = [row["eval_score"] for row in rows if "eval_score" in row]
    assert scores[-1] > scores[0] + 0.2
    explained = [row["critic/explained_variance"] for row in rows if "critic/explained_variance" in row]
    assert max(explained) > 0.5, "while the policy still fails; later there is less to explain"
    losses = [row["critic/loss"] for row in rows if "critic/loss" in row]
    assert losses[-1] < 0.5 * losses[0]
