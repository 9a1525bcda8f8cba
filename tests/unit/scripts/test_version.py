"""The version is in pyproject.toml; the files that repeat it follow."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

import version

ROOT = Path(__file__).resolve().parents[3]


def copy(tmp_path: Path) -> None:
    """Copy what the script reads and writes."""
    for path in [ROOT / "pyproject.toml", *(path for pattern in version.FILES for path in ROOT.glob(pattern))]:
        to = tmp_path / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)


def test_a_new_version_reaches_every_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy(tmp_path)
    assert version.main(["--check", "--root", str(tmp_path)]) == 0
    project = tmp_path / "pyproject.toml"
    now = tomllib.loads(project.read_text())["project"]["version"]
    project.write_text(project.read_text().replace(f'version = "{now}"', 'version = "7.8.9rc1"', 1))
    assert version.main(["--check", "--root", str(tmp_path)]) == 1
    assert "helm/lorarl/Chart.yaml has another version than pyproject.toml" in capsys.readouterr().err
    assert version.main(["--root", str(tmp_path)]) == 0
    assert version.main(["--check", "--root", str(tmp_path)]) == 0
    assert "\nversion: 7.8.9rc1\nappVersion: 7.8.9rc1\n" in (tmp_path / "helm/lorarl/Chart.yaml").read_text()
    assert "lorarl/trainer:7.8.9rc1-cuda" in (tmp_path / "docs/install.md").read_text()


@pytest.mark.parametrize("text", ["ray==0.1.0", "cel-expr-python 0.1.3", "  apiVersion: v2", "schema-version: 1.2.3"])
def test_other_versions_stay(text: str) -> None:
    assert version.with_version(text, "7.8.9") == text
