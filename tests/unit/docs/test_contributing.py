"""What the documents point at is there, and whoever touches a module finds the tests to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRAINER = ROOT / "trainer_image/lorarl_trainer"
# Where a name in the table's first column may lie.
PACKAGES = (ROOT, TRAINER, ROOT / "operator/lorarl_operator")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("helm/*/*.md"), *ROOT.glob("tests/*.md")])
TABLE = re.findall(
    r"^\| (.*?) \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text().partition("| you touch |")[2], re.MULTILINE
)
TOUCHED = {name.rstrip("/") for touched, _ in TABLE for name in re.findall(r"`([\w./]+)`", touched)}
RUN = {path for _, run in TABLE for path in re.findall(r"\btests/[\w./]+", run)}


def test_every_path_of_the_table_is_there() -> None:
    assert TOUCHED and RUN
    assert [name for name in TOUCHED if not any((folder / name).exists() for folder in PACKAGES)] == []
    assert [path for path in RUN if not (ROOT / path).exists()] == []


def test_every_part_of_the_trainer_is_in_the_table() -> None:
    """The operator is one row."""
    parts = {path.name for path in TRAINER.iterdir() if path.name not in ("__init__.py", "__pycache__", "py.typed")}
    assert parts - {name.split("/")[0] for name in TOUCHED} == set()


def test_every_folder_of_tests_is_in_the_table() -> None:
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py")}
    assert [
        str(folder) for folder in folders if not any((ROOT / folder).is_relative_to(ROOT / path) for path in RUN)
    ] == []


def test_every_log_by_labels_is_whole() -> None:
    """By labels kubectl shows the last ten lines, unless it is told otherwise."""
    commands = [
        line for path in DOCUMENTS for line in path.read_text().splitlines() if re.match(r"kubectl logs\b.* -l ", line)
    ]
    assert commands
    assert [command for command in commands if "--tail=-1" not in command] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if "://" not in link and not (document.parent / link).exists()] == []
