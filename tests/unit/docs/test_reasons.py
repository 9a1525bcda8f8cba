"""Every reason that a user may see is explained in docs/jobs.md, and nothing that no code gives is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_operator import pages
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.reasons import Counts, Ended, Waiting
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.launch.run import INTERRUPTED

ROOT = Path(__file__).parents[3]
OPERATOR = ROOT / "operator/lorarl_operator"
PAGE = ROOT / "docs/jobs.md"


def kinds(error: type[LorarlError]) -> Iterator[type[LorarlError]]:
    yield error
    for kind in error.__subclasses__():
        yield from kinds(kind)


def trainers() -> set[str]:
    """Return the reasons that the trainer may write into `status.failure`."""
    return {kind.reason for kind in kinds(LorarlError)} | {INTERRUPTED}


def given() -> set[str]:
    """Return the reasons that the operator's code names."""
    sources = [path.read_text() for path in OPERATOR.rglob("*.py") if path.name != "reasons.py"]
    found = re.findall(r"\b(Waiting|Ended|News)\.([A-Z_]+)\b", "\n".join(sources))
    tables = {"Waiting": Waiting, "Ended": Ended, "News": News}
    return {str(tables[table][name]) for table, name in found}


def test_the_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(("page", "cell"), [("jobs.md", "| `NameTaken` |"), ("operator.md", "| `7200` |")])
def test_a_page_that_differs_is_written_again(
    page: str, cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images"))
    copy = tmp_path / "docs" / page
    text = copy.read_text()
    copy.write_text(text.replace(cell, "| other |"))
    assert pages.main(["--check", "--root", str(tmp_path)]) == 1
    assert f"{page} is out of date. Run `make generate`" in capsys.readouterr().err
    assert pages.main(["--root", str(tmp_path)]) == 0
    assert copy.read_text() == text


@pytest.mark.parametrize("reason", [*Waiting, *Ended, *News])
def test_every_reason_is_explained(reason: Waiting | Ended | News) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]+", reason)
    assert f"\n| `{reason}` | {reason.cause} |" in PAGE.read_text()
    assert reason.cause.endswith(".") and "|" not in reason.cause + reason.then
    if isinstance(reason, Waiting):
        assert reason.then.endswith(".")
    if isinstance(reason, Ended):
        assert reason.then in list(Counts)


def test_every_reason_of_the_trainer_is_in_the_table() -> None:
    assert trainers() - set(Ended) == set()


def test_every_reason_in_the_tables_is_given() -> None:
    assert {str(one) for one in (*Waiting, *Ended, *News)} - given() - trainers() == set()
