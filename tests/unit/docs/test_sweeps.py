"""docs/sweeps.md: its manifest is the example, its commands for one machine work, its reasons are the operator's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lorarl_api.sweeps.halving import HalvingRule
from lorarl_api.sweeps.stopping import MedianRule
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_trainer.cli import main
from lorarl_trainer.launch.trials import Trials
from unit.contract.manifests import manifest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/sweeps.md").read_text()
LINES = [line.partition("  #")[0].strip() for line in PAGE.splitlines()]
SWEEPS = [line for line in LINES if line.startswith("lorarl sweep ")]


def test_the_pages_manifest_is_the_example() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert (ROOT / "examples/sweeps/sums.yaml").read_text().endswith(f"\n{shown}")


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = (line for line in LINES if line.startswith("lorarl validate"))
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    assert done.exit_code == 0 and done.output == "examples/sweeps/sums.yaml: ok\n"


@pytest.mark.parametrize("line", SWEEPS)
def test_a_command_of_the_page_makes_its_trials(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the trainings: tests/run/test_sweep.py has those."""
    monkeypatch.chdir(tmp_path)
    job = manifest({"metadata.name": "NAME".lower(), "spec.model.uri": "hf://example/tiny"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    made: list[Trials] = []
    monkeypatch.setattr(Trials, "run", lambda self, trials: made.append(self) or {})
    done = CliRunner().invoke(main, shlex.split(line)[1:], catch_exceptions=False)
    assert done.exit_code == 0 and done.output.startswith("4 trials"), done.output
    stopping = made[0].stopping
    assert (stopping is not None) == ("--stop" in line)
    rules = {"median": MedianRule(20, 3), "halving": HalvingRule(10, 3)}
    assert stopping is None or getattr(stopping, "rule", None) == next(rules[name] for name in rules if name in line)


def test_every_reason_is_given_by_the_operator() -> None:
    files = (ROOT / "operator/lorarl_operator").rglob("*.py")
    source = "\n".join(path.read_text() for path in files if path.name != "sweep_reasons.py")
    assert [one.name for one in Sweeping if not re.search(rf"(Sweeping|_reasons)\.{one.name}\b", source)] == []
    assert all(one.cause.endswith(".") and one.then.endswith(".") for one in Sweeping)
