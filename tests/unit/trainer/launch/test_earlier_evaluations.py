"""What a run takes from the records of the runs that it continues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.launch.earlier_evaluations import Recorded, recorded
from lorarl_trainer.progress.events import EvalDone, row_of
from lorarl_trainer.session import FIRST_RESULTS, STEP_RESULTS
from unit.contract.manifests import SFT, manifest

EVALUATION = {"eval_score": 0.5, "eval_loss": None, "eval_rows": 4, "eval_seconds": 0.1}


def spec(**checkpoint: Any) -> LoRARLJobSpec:
    evaluated = {"spec.data.eval": {"uri": "file:e.jsonl", "every": 2}}
    return load_job(json.dumps(manifest(evaluated | {f"spec.checkpoint.{k}": v for k, v in checkpoint.items()}))).spec


def write(out_dir: Path, *rows: dict[str, Any]) -> None:
    (out_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_results_and_the_values_that_choose_the_best_come_from_the_curves(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"step": 0} | EVALUATION,
        {"step": 1, "reward_mean": 0.1},
        {"step": 2, "reward_mean": 0.2},
        {"step": 2} | EVALUATION | {"eval_score": 0.75},
        {"step": 3, "reward_mean": 0.3},
        {"step": 4, "reward_mean": 0.4},
        {"step": 4} | EVALUATION | {"eval_score": 0.25},
    )
    found = recorded(tmp_path, spec(keepBest={}), 4)
    assert found.evaluated is True and found.chosen_by == {2: 0.75, 4: 0.25}, "the base model's value does not count"
    assert found.results == {
        FIRST_RESULTS: {"eval_score": 0.5, "eval_rows": 4},
        STEP_RESULTS: {"reward_mean": 0.4, "eval_score": 0.25, "eval_rows": 4},
    }
    assert recorded(tmp_path, spec(keepBest={}), 2).chosen_by == {2: 0.75}, "later steps are made again"
    assert recorded(tmp_path, spec(), 4).chosen_by == {}


@pytest.mark.parametrize(("reward", "hard", "best"), [(None, {"loss": 0.5}, 0.5), ("exact", {"score": 0.75}, 0.75)])
def test_an_evaluation_beside_sft_is_compared_by_its_loss_or_reward(
    tmp_path: Path, reward: str | None, hard: dict[str, float], best: float
) -> None:
    source = {"name": "hard", "uri": "file:h.jsonl"} | ({"reward": {"type": reward}} if reward else {})
    job = SFT | {"spec.data.evals": [source], "spec.checkpoint.keepBest": {"eval": "hard"}}
    write(tmp_path, {"step": 1}, row_of(EvalDone(step=1, rows=4, name="hard", **hard)))
    assert recorded(tmp_path, load_job(json.dumps(manifest(job))).spec, 1).chosen_by == {1: best}


def test_a_step_whose_evaluation_was_cut_short_is_not_evaluated(tmp_path: Path) -> None:
    write(tmp_path, {"step": 1, "reward_mean": 0.1}, {"step": 2, "reward_mean": 0.2})
    assert recorded(tmp_path, spec(keepBest={}), 2) == Recorded(False, {STEP_RESULTS: {"reward_mean": 0.2}}, {})


def test_nothing_is_known_without_a_record_and_of_a_start_from_scratch(tmp_path: Path) -> None:
    assert recorded(tmp_path, spec(keepBest={}), 2) == Recorded(None, {}, {})
    write(tmp_path, {"step": 0} | EVALUATION)
    assert recorded(tmp_path, spec(keepBest={}), 0).results == {}
