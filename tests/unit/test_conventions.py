"""Limits that keep the code readable: the length of files and of test names, and what is at the trainer's top level."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 400
LONGEST_TEST_NAME = 70
MOST_TOP_LEVEL_FILES = 10


@pytest.fixture(scope="module")
def files() -> list[Path]:
    """All Python files of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip(f"this is not a git checkout: {listed.stderr.strip()}")
    return [path for path in map(ROOT.joinpath, listed.stdout.splitlines()) if path.exists()]


def test_no_python_file_is_too_long(files: list[Path]) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_test_name_is_too_long(files: list[Path]) -> None:
    """What does not fit into the name belongs into the docstring."""
    tests = [path for path in files if path.is_relative_to(ROOT / "tests")]
    names = {name for path in tests for name in re.findall(r"\bdef (test_\w+)\(", path.read_text())}
    assert {name: len(name) for name in names if len(name) > LONGEST_TEST_NAME} == {}


def test_the_trainers_top_level_has_few_files() -> None:
    """A newcomer reads them first; what is not part of the loop belongs into a package."""
    top = sorted(path.name for path in (ROOT / "trainer_image/lorarl_trainer").glob("*.py"))
    assert len(top) <= MOST_TOP_LEVEL_FILES, top
