"""docs/data.md: each form of a file is read as the page says, by the fields above it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.rows import Row, load_rows

ROOT = Path(__file__).resolve().parents[3]
SECTION = (ROOT / "docs/data.md").read_text().partition("## The file")[2].partition("\n## ")[0]
FORMS = {
    title: (yaml.safe_load(fields)["train"], rows)
    for title, fields, rows in re.findall(
        r"^\*\*(.+?)\*\*.*?^```yaml\n(.*?)^```.*?^```(?:json|csv)\n(.*?)^```", SECTION, re.M | re.S
    )
}


def read(title: str, folder: Path) -> list[Row]:
    fields, text = FORMS[title]
    source = DataSource.model_validate(fields)
    (folder / source.origin.removeprefix("file:")).write_text(text)
    return load_rows(
        source,
        field="spec.data.train",
        needs_answer=title not in ("No answers", "Further columns"),
        fetch=lambda uri: folder / uri.removeprefix("file:"),
        pairs=title == "Preference pairs",
    )


def test_the_forms_are_those_that_people_ask_for() -> None:
    forms = ["JSON lines", "CSV", "Chat messages", "No answers", "Further columns", "Nested columns"]
    assert list(FORMS) == [*forms, "A system message and tools", "Preference pairs"]


@pytest.mark.parametrize("title", FORMS)
def test_a_form_has_three_rows_that_are_read(title: str, tmp_path: Path) -> None:
    rows = read(title, tmp_path)
    assert len(rows) == 3
    assert all(row.prompt for row in rows)


def test_rows_are_what_the_page_says_of_them(tmp_path: Path) -> None:
    rows = read("CSV", tmp_path)
    assert [(row.prompt, row.answer) for row in rows[1:]] == [
        ('Say "hi".', "hi"),
        ("What is the agent's number?", "007"),
    ]
    assert read("Chat messages", tmp_path)[0].answer == "Bonjour"
    assert [row.answer for row in read("No answers", tmp_path)] == [None] * 3
    assert read("Further columns", tmp_path)[2].raw["keys"] == ["title"]
    assert read("Nested columns", tmp_path)[0].answer == "3"
    assert read("A system message and tools", tmp_path)[1].tools == [{"type": "function", "function": {"name": "add"}}]
    assert read("Preference pairs", tmp_path)[1].rejected == "5."
