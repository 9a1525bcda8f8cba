"""docs/licences.md: a row for each package of the locks, with the licence of its metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import licences

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("expression", "text", "classifier", "licence"),
    [
        ("MIT OR Apache-2.0", "MIT", "License :: OSI Approved :: MIT License", "MIT OR Apache-2.0"),
        (None, "BSD-3-Clause", "License :: OSI Approved :: BSD License", "BSD-3-Clause"),
        (None, "MIT License\n\nCopyright (c) ...", "Programming Language :: Python", "MIT License"),
        (None, "x" * 61, "License :: OSI Approved :: MIT License", "MIT License"),
        (None, None, "Programming Language :: Python", "not named in its metadata"),
    ],
)
def test_a_licence_is_what_the_metadata_names(
    expression: str | None, text: str | None, classifier: str, licence: str
) -> None:
    assert licences.licence(expression, text, [classifier]) == licence


def test_the_table_is_that_of_the_locks() -> None:
    assert licences.main(["--check"]) == 0
    page = (ROOT / "docs/licences.md").read_text()
    assert licences.rows(page)["click", "8.5.1"] == "BSD-3-Clause"


def test_a_package_of_another_version_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/licences.md", tmp_path / "docs")
    lock = tmp_path / "requirements/operator.lock"
    lock.write_text(lock.read_text().replace("kopf==", "kopf==9."))
    assert licences.main(["--check", "--root", str(tmp_path)]) == 1
    assert "docs/licences.md is out of date. Run `make generate`" in capsys.readouterr().err
