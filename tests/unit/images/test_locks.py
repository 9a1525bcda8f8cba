"""The locks of images and wheel are what pyproject.toml resolves to: also those for GPUs, which no test installs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.slow


def skip_without_an_index(said: str) -> None:
    if re.search("error sending request|Failed to fetch|error decoding response|timed out", said):
        pytest.skip(f"the package index cannot be reached: {said.strip().splitlines()[-1]}")


@pytest.mark.parametrize("lock", ["gpu", "wheel-cpu", "operator", "trainer-cpu", "build"])
def test_a_lock_resolves_to_itself(lock: str) -> None:
    checked = subprocess.run(["scripts/lock.sh", "--check", lock], cwd=ROOT, capture_output=True, text=True)
    skip_without_an_index(checked.stderr)
    assert checked.returncode == 0, checked.stderr


def test_a_lock_needs_no_setup(tmp_path: Path) -> None:
    for folder in ("scripts", "requirements"):
        (tmp_path / folder).mkdir()
    for name in (
        "scripts/lock.sh",
        "scripts/python.sh",
        "scripts/uv.sh",
        "requirements/build.in",
        "requirements/build.lock",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    checked = subprocess.run(["scripts/lock.sh", "--check", "build"], cwd=tmp_path, capture_output=True, text=True)
    skip_without_an_index(checked.stderr)
    assert checked.returncode == 0, checked.stderr


def test_a_lock_that_is_not_is_told(tmp_path: Path) -> None:
    # A copy of what lock.sh reads, in which a package of the lock has another version than its source asks for.
    for folder in ("scripts", "requirements"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    for name in (
        "scripts/lock.sh",
        "scripts/python.sh",
        "scripts/uv.sh",
        "requirements/build.in",
        "requirements/build.lock",
    ):
        shutil.copy(ROOT / name, tmp_path / name)
    source = tmp_path / "requirements/build.in"
    source.write_text(source.read_text().replace("hatchling==", "hatchling!="))

    checked = subprocess.run(
        ["bash", "scripts/lock.sh", "--check", "build"], cwd=tmp_path, capture_output=True, text=True
    )
    skip_without_an_index(checked.stderr)

    assert checked.returncode == 1
    assert "requirements/build.lock is not what pyproject.toml resolves to. Run make lock." in checked.stderr
