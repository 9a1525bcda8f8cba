"""What `lorarl sweep` says at its end. The trials are recorded ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lorarl_trainer.cli import main
from lorarl_trainer.launch.sweep import Trial
from lorarl_trainer.launch.trials import Group, Trials
from lorarl_trainer.progress import Progress
from lorarl_trainer.progress.metrics_file import MetricsFile, SummaryFile
from unit.contract.manifests import manifest
from unit.trainer.progress.runs import grpo_run


def test_equal_trials_are_named_beside_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(_: Trials, groups: Sequence[Group]) -> dict[Trial, int]:
        for trial in groups[0].trials:
            with Progress([MetricsFile(trial.folder), SummaryFile(trial.folder)], []) as progress:
                for event in grpo_run(trial.folder, total=9 if "seed=2" in trial.label else 8):
                    progress.emit(event)
        return {}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trials, "run", record)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest({"spec.model.uri": "hf://example/tiny"})))
    words = ["sweep", "job.yaml", "--objective", "reward_mean", "--over", "spec.trainer.seed="]
    done = CliRunner().invoke(main, [*words[:-1], f"{words[-1]}2,3,4"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "\nBest  seed=3: reward_mean" in done.output
    assert "\nEqual  seed=4. The first trial of the sweep is named the best." in done.output
    [row] = [line for line in done.output.splitlines() if line.startswith("best ")]
    assert row.split("  ")[-1] == "equal to the best" and "best, the first of equal ones" in row
    page = (tmp_path / "out/smallest-sweep/compare.html").read_text()
    assert "best, the first of equal ones" in page
    done = CliRunner().invoke(main, [*words[:-1], f"{words[-1]}2,3", "--out", "two"], catch_exceptions=False)
    assert "Equal" not in done.output and "the first of equal ones" not in done.output
