"""docs/schedules.md: its manifest is the example, which is valid, and its reasons are the operator's."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lorarl_api.load import faults
from lorarl_api.schedules.manifest import time_of
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_trainer.cli import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/schedules.md").read_text()
LINES = [line.partition("  #")[0].strip() for line in PAGE.splitlines()]


def test_the_pages_manifest_is_the_example() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.M | re.S)
    assert (ROOT / "examples/schedules/nightly.yaml").read_text().endswith(f"\n{shown}")


def test_the_example_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = (line for line in LINES if line.startswith("lorarl validate"))
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    assert done.exit_code == 0 and done.output == "examples/schedules/nightly.yaml: ok\n"


def test_the_next_job_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (line,) = (line for line in LINES if line.startswith("lorarl render"))
    done = CliRunner().invoke(main, shlex.split(line.partition(">")[0])[1:])
    assert done.exit_code == 0, done.output
    job = yaml.safe_load(done.stdout)
    assert time_of("nightly", job["metadata"]["name"]) and "initFrom" not in job["spec"]["adapter"]

    assert faults(job) == []


def test_every_reason_is_given_by_the_operator() -> None:
    files = (ROOT / "operator/lorarl_operator").rglob("*.py")
    source = "\n".join(path.read_text() for path in files if path.name != "schedule_reasons.py")
    named = [one.name for one in Scheduling if not re.search(rf"(Scheduling|_reasons)\.{one.name}\b", source)]
    assert named == []
    assert all(one.cause.endswith(".") and one.then.endswith(".") for one in Scheduling)
