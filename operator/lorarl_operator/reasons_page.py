"""`python -m lorarl_operator.reasons_page`: write the tables of docs/jobs.md; with --check, compare them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lorarl_api.page import between, table, update
from lorarl_operator.decide.reasons import Ended, News, Waiting

_PAGE = Path(__file__).parents[2] / "docs/jobs.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or compare them.

    Returns:
        The exit code: 1 if --check finds a difference.
    """
    parser = argparse.ArgumentParser(prog="python -m lorarl_operator.reasons_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is out of date")
    parser.add_argument("--page", type=Path, default=_PAGE, help="the document")
    options = parser.parse_args(arguments)
    return update({options.page: with_tables(options.page.read_text(encoding="utf-8"))}, check=options.check)


def with_tables(text: str) -> str:
    """Return a document with its tables of reasons up to date."""
    waiting = table(("reason", "cause", "fix"), ((f"`{one}`", one.cause, one.then) for one in Waiting))
    ended = table(("reason", "cause", "counts as"), ((f"`{one}`", one.cause, one.then) for one in Ended))
    news = table(("reason", "meaning"), ((f"`{one}`", one.cause) for one in News))
    text = between(text, "reasons to wait", waiting)
    return between(between(text, "reasons of an end", ended), "other Events", news)


if __name__ == "__main__":
    sys.exit(main())
