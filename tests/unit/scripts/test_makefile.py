"""What the Makefile passes on, and what it lists."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def make(*arguments: str, **environment: str) -> str:
    whole = {**os.environ, **environment}
    return subprocess.run(
        ["make", "-s", *arguments], cwd=ROOT, env=whole, capture_output=True, text=True, check=True
    ).stdout


def test_the_python_that_a_user_names_reaches_setup() -> None:
    assert make("--eval", "show: ; @echo $$PYTHON", "show", PYTHON="/chosen") == "/chosen\n"


def test_help_lists_every_target_in_its_group() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = {line.removeprefix(".PHONY: ") for line in text.splitlines() if line.startswith(".PHONY: ")}
    groups = {line.removeprefix("##@ ") for line in text.splitlines() if line.startswith("##@ ")}
    shown = make("help").splitlines()
    assert {line.split()[0] for line in shown if line.startswith("  ")} == targets
    assert groups <= set(shown)
    assert [line for line in [*shown, *text.splitlines()] if len(line) > 100] == []


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("trainer", "-n 2 --dist loadfile --no-loadscope-reorder tests/trainer"),
        ("unit/docs tests/unit/chart", "tests/unit/docs tests/unit/chart"),
        ("tests/unit/docs/test_x.py::test_y", "tests/unit/docs/test_x.py::test_y"),
    ],
)
def test_one_part_is_run_alone(part: str, expected: str) -> None:
    commands = make("--just-print", "test", f"T={part}").splitlines()
    assert commands[-1] == f".venv/bin/python -m pytest {expected}"
    assert not [command for command in commands if "mypy" in command]
