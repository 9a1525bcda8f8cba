"""An earlier version of the project, from git: its operator and its trainer, beside today's definitions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PREVIOUS = "1d14b6d"
"""The version before: a landed commit of the day before. The next release puts its tag here."""
PACKAGES = ("crds", "operator", "trainer_image")


@contextmanager
def previous_version(folder: Path) -> Iterator[Path]:
    """A work tree of the version before, until the block ends. The test is skipped where git does not have it."""
    known = subprocess.run(["git", "cat-file", "-e", f"{PREVIOUS}^{{commit}}"], cwd=ROOT, capture_output=True)
    if known.returncode != 0:
        pytest.skip(f"this clone does not have commit {PREVIOUS}: it is shallow, or no clone of git")
    folder.mkdir()
    packed = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    imported = "import lorarl_api, lorarl_operator, lorarl_trainer as t; print(t.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", imported],
        env={**os.environ, "PYTHONPATH": python_path(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(folder), "its packages come before today's"
    yield folder


def python_path(tree: Path) -> str:
    """PYTHONPATH of the packages of a work tree."""
    return os.pathsep.join(str(tree / one) for one in PACKAGES)
