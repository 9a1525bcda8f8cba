"""A trial that has finished is not started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.launch.resumption import keep_manifest
from lorarl_trainer.launch.trials import has_finished
from unit.contract.manifests import SMALLEST

JOB = json.dumps(SMALLEST)


def finished(folder: Path, **changes: object) -> Path:
    """Make the folder of a run that made all its steps."""
    adapter = folder / "adapter"
    adapter.mkdir(parents=True)
    steps = load_job(JOB).spec.trainer.steps
    summary = {"state": "succeeded", "step": steps, "adapter_uri": f"file://{adapter}"} | changes
    (folder / "run_summary.json").write_text(json.dumps(summary))
    keep_manifest(folder, JOB, None)
    return folder


def test_a_run_that_made_all_its_steps_has_finished(tmp_path: Path) -> None:
    assert has_finished(finished(tmp_path / "run"), load_job(JOB))
    assert has_finished(finished(tmp_path / "remote", adapter_uri="s3://bucket/adapter"), load_job(JOB))


@pytest.mark.parametrize(
    "changes", [{"state": "interrupted"}, {"state": "failed"}, {"step": 1}, {"adapter_uri": None}], ids=str
)
def test_a_run_that_did_not_has_not(tmp_path: Path, changes: dict[str, object]) -> None:
    assert not has_finished(finished(tmp_path / "run", **changes), load_job(JOB))


@pytest.mark.parametrize("change", ["spec.trainer.steps=7", "spec.trainer.learningRate=0.5"])
def test_a_job_that_has_changed_since_is_made(tmp_path: Path, change: str) -> None:
    assert not has_finished(finished(tmp_path / "run"), load_job(JOB, [change]))


def test_a_run_whose_folder_or_adapter_is_gone_is_made(tmp_path: Path) -> None:
    assert not has_finished(tmp_path / "none", load_job(JOB))
    folder = finished(tmp_path / "run")
    (folder / "adapter").rmdir()
    assert not has_finished(folder, load_job(JOB))


def test_a_summary_that_is_not_whole_counts_for_nothing(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    (folder / "run_summary.json").write_text('{"state": "succeeded"')
    assert not has_finished(folder, load_job(JOB))
