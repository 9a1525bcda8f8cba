"""How the error of a row counts and names the others that are as wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.rows import load_rows
from lorarl_trainer.errors import InputError


def refused(path: Path) -> InputError:
    source = DataSource(uri=f"file:{path}")
    with pytest.raises(InputError) as caught:
        load_rows(source, field="spec.data.train", needs_answer=True, fetch=lambda _: path)
    return caught.value


def jsonl(tmp_path: Path, *rows: dict[str, str]) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_with_the_same_fault_are_counted_and_the_first_few_named(tmp_path: Path) -> None:
    def rows(faulty: int) -> Path:
        return jsonl(tmp_path, {"prompt": "b", "answer": "c"}, *[{"prompt": " ", "answer": "a"}] * faulty)

    def others(faulty: int) -> str:
        return refused(rows(faulty)).got.partition("train.jsonl")[2]

    assert others(1) == ""
    assert others(2) == ", and it is as wrong in row 3"
    assert others(6) == ", and it is as wrong in 5 other rows (3, 4, 5, ...)"
    assert others(2000) == ", and it is as wrong in 999 or more other rows (3, 4, 5, ...)"


@pytest.mark.parametrize(
    ("rows", "others"),
    [
        (1, ""),
        (2, ", and it is as wrong in row 2"),
        (296, ", and it is as wrong in all 296 rows"),
        (2000, ", and it is as wrong in all of the first 1,000 rows"),
    ],
)
def test_a_fault_of_all_rows_is_said_to_be_in_all(tmp_path: Path, rows: int, others: str) -> None:
    error = refused(jsonl(tmp_path, *[{"question": "a", "answer": "b"}] * rows))
    assert error.got.partition(" does not have")[2] == others


def test_another_fault_is_not_counted_as_the_same(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "", "answer": "a"}, {"prompt": "b"}, {"prompt": "", "answer": "c"})
    assert refused(path).got.endswith("and it is as wrong in row 3")
