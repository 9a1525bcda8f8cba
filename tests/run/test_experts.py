"""A mixture of experts learns on a CPU, and a training that is killed ends in the bytes of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from run.command import Ended
from run.conftest import TESTS, made_once
from run.jobs import Job, published

STEPS, EVERY = 8, 3
SHARED = {"experts": "sharedOuter"}


def manifest(base: Path, adapter: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": "letters"},
        "spec": {
            "model": {"uri": f"file://{base / 'base'}"},
            "adapter": {"rank": 16, "alpha": 32, "targetModules": ["all-linear"], **adapter},
            "algorithm": {"type": "grpo", "groupSize": 8},
            "reward": {"function": "letters:right", "timeoutSeconds": 120.0},
            "data": {
                "train": {"uri": f"file://{base / 'train.jsonl'}", "answerField": "answer"},
                "eval": {"uri": f"file://{base / 'held_out.jsonl'}", "answerField": "answer", "every": STEPS},
                "chatTemplate": False,
            },
            "rollout": {"promptsPerStep": 16, "maxPromptTokens": 8, "maxResponseTokens": 4},
            "trainer": {"steps": STEPS, "learningRate": 1.5e-3},
            "checkpoint": {"uri": "file:checkpoints", "every": EVERY, "keep": STEPS},
        },
    }


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model and its data, made in a separate process: pytest's needs no torch."""

    def make(folder: Path) -> Path:
        search = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        script = Path(__file__).with_name("make_moe_base.py")
        subprocess.run([sys.executable, script, folder], check=True, env={**os.environ, "PYTHONPATH": search})
        return folder

    return made_once(tmp_path_factory, "mixture", make)


@pytest.fixture(scope="module", params=[{}, pytest.param(SHARED, marks=pytest.mark.long)], ids=str)
def adapter(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Fields of the job's adapter."""
    fields: Mapping[str, Any] = request.param
    return fields


def new_job(folder: Path, mixture: Path, adapter: Mapping[str, Any]) -> Job:
    job = Job(folder, mixture)
    (folder / "job.yaml").write_text(yaml.safe_dump(manifest(mixture, adapter)))
    return job


@pytest.fixture(scope="module")
def learnt(mixture: Path, adapter: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Ended]:
    job = new_job(tmp_path_factory.mktemp("learnt"), mixture, adapter)
    ended = job.run()
    assert ended.code == 0, ended
    return job, ended


def test_a_mixture_learns_to_add(learnt: tuple[Job, Ended], adapter: Mapping[str, Any]) -> None:
    job, ended = learnt
    scores = {row["step"]: row["eval_score"] for row in ended.rows if row.get("eval_score") is not None}
    assert scores[STEPS] - scores[0] >= 0.5, scores
    shared = ", outer matrices shared" if adapter == SHARED else ""
    assert f"rank 16 (of each expert 8{shared}), alpha 32, on 32 modules" in ended.stdout
    changed = [row["routing_changed"] for row in ended.rows if row.get("loss") is not None]
    assert len(changed) == STEPS and max(changed) < 1e-3, "in fp32 trainer and engine choose the same experts"
    config = json.loads((job.checkpoints / f"iter_{STEPS:07}" / "lora_adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["rank_pattern"]["q_proj"]) == (8, 16)


@pytest.mark.long
def test_workers_that_share_experts_go_on_where_one_stopped(
    mixture: Path, adapter: Mapping[str, Any], learnt: tuple[Job, Ended], tmp_path: Path
) -> None:
    """From one layout to the other and back. Two workers replay the routing of each other's rollouts."""
    job = new_job(tmp_path, mixture, adapter)
    for steps, workers, resumed in ((3, 1, None), (6, 2, 3), (STEPS, 1, 6)):
        ended = job.run(f"trainer.steps={steps}", f"trainer.expertParallelSize={workers}")
        assert ended.code == 0, ended
        assert ended.summary["resumed_from_step"] == resumed
        if workers == 2:
            assert (ended.out / "logs" / "worker-1.log").exists()
    rows = [row for row in ended.rows if row.get("loss") is not None]
    scores = {row["step"]: row["eval_score"] for row in ended.rows if row.get("eval_score") is not None}
    expected = [row for row in learnt[1].rows if row.get("loss") is not None]
    assert len(rows) == STEPS and max(row["routing_changed"] for row in rows) < 1e-3
    # Later steps may be of other completions: rounding changes a sampled token now and then.
    for name in ("reward_mean", "grad_norm"):
        same = [row[name] for row in expected[:4]]
        assert [row[name] for row in rows[:4]] == pytest.approx(same, rel=1e-3), "the fourth is of two workers"
    assert scores[STEPS] - scores[0] >= 0.5, scores
    command = [sys.executable, "-m", "lorarl_trainer.cli", "evaluate", str(job.out), "--json"]
    evaluated = subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=240, check=True)
    score = json.loads(evaluated.stdout)["score"]["adapter"]["mean"]
    assert score == pytest.approx(scores[STEPS], abs=0.05), "Transformers and PEFT say the same"


@pytest.mark.long
def test_a_killed_training_goes_on_to_the_same_bytes(
    mixture: Path, adapter: Mapping[str, Any], learnt: tuple[Job, Ended], tmp_path: Path
) -> None:
    job = new_job(tmp_path, mixture, adapter)
    run = job.start()
    run.wait_for_step(EVERY + 1)
    job.gate.touch()  # the run stands still within one of the next steps, so it does not end first
    run.wait_until(lambda: published(job), "a checkpoint was published")
    run.kill()
    assert run.end().left_running == []
    job.gate.unlink()
    ended = job.run()
    assert ended.code == 0, ended
    assert EVERY <= ended.summary["resumed_from_step"] < STEPS
    assert ended.adapter_digest == learnt[1].adapter_digest
    assert ended.rows_but_for_times == learnt[1].rows_but_for_times
