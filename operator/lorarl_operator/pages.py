"""`python -m lorarl_operator.pages`: write the tables of pages in docs/ that follow from the operator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lorarl_api.page import between, table, update
from lorarl_operator.decide.news_reasons import News
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.reasons import Ended, Waiting
from lorarl_operator.decide.retry_policy import default_action
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.options import rows

_ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables, or compare them.

    Returns:
        The exit code: 1 if --check finds a difference.
    """
    parser = argparse.ArgumentParser(prog="python -m lorarl_operator.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is out of date")
    parser.add_argument("--root", type=Path, default=_ROOT, help="root of the repository")
    options = parser.parse_args(arguments)
    makers = {
        "jobs.md": with_reasons,
        "operator.md": with_settings,
        "publishing.md": with_publishing,
        "schedules.md": with_scheduling,
        "sweeps.md": with_sweeping,
    }
    pages = {options.root / "docs" / name: maker for name, maker in makers.items()}
    return update({page: made(page.read_text(encoding="utf-8")) for page, made in pages.items()}, check=options.check)


def with_reasons(text: str) -> str:
    """Return a document with its tables of reasons up to date."""
    waiting = table(("reason", "cause", "fix"), ((f"`{one}`", one.cause, one.then) for one in Waiting))
    actions = {one: f"`{action}`" if (action := default_action(one)) else "–" for one in Ended}
    ends = ((f"`{one}`", one.cause, one.then, actions[one]) for one in Ended)
    ended = table(("reason", "cause", "counts as", "`retryPolicy`"), ends)
    news = table(("reason", "meaning"), ((f"`{one}`", one.cause) for one in News))
    text = between(text, "reasons to wait", waiting)
    return between(between(text, "reasons of an end", ended), "other Events", news)


def with_publishing(text: str) -> str:
    """Return a document with its table of the reasons of publishing up to date."""
    rows = ((f"`{one}`", one.cause, one.then) for one in Publishing)
    return between(text, "reasons of publishing", table(("reason", "cause", "fix"), rows))


def with_sweeping(text: str) -> str:
    """Return a document with its table of the reasons of sweeps up to date."""
    rows = ((f"`{one}`", one.cause, one.then) for one in Sweeping)
    return between(text, "reasons of sweeps", table(("reason", "cause", "fix"), rows))


def with_scheduling(text: str) -> str:
    """Return a document with its table of the reasons of schedules up to date."""
    rows = ((f"`{one}`", one.cause, one.then) for one in Scheduling)
    return between(text, "reasons of schedules", table(("reason", "cause", "fix"), rows))


def with_settings(text: str) -> str:
    """Return a document with its table of the operator's settings up to date."""
    return between(text, "settings", table(("variable", "default", "meaning"), rows(Settings)))


if __name__ == "__main__":
    sys.exit(main())
