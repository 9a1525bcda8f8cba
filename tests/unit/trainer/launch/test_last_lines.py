"""The last lines of a run: what they say of its gain, before how the adapter is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.launch.build import Launch
from lorarl_trainer.launch.run import _print_last_lines
from lorarl_trainer.launch.runtime import local_runtime
from lorarl_trainer.progress import METRICS
from lorarl_trainer.timing import StartClock
from unit.contract.manifests import manifest
from unit.trainer.progress.test_usage import evaluated, summary


@pytest.mark.parametrize(("done", "after", "said"), [
    (True, (0.1, 0.2), True), (True, (0.8, 0.9), False), (False, (0.1, 0.2), False),
])  # fmt: skip
def test_a_whole_run_without_a_gain_says_so_before_its_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], done: bool, after: tuple[float, float], said: bool
) -> None:
    job = load_job(json.dumps(manifest({"spec.cluster": {"gpusPerNode": 0}})))
    launch = Launch(job, tmp_path, tmp_path, local_runtime(job, tmp_path), {}, StartClock("driver", "process"))
    rows = evaluated((0.1, 0.2), after)
    (tmp_path / METRICS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "run_summary.json").write_text(json.dumps(summary()))
    _print_last_lines(launch, done)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("No gain   held-out score" if said else "Next      lorarl evaluate")
    assert lines[-1].startswith("Adapter   ")
