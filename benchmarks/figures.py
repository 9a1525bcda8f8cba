"""The part of a document that a benchmark writes, between its two marker lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def write_between(document: Path, begin: str, end: str, make: Callable[[], str]) -> None:
    """Make a text and put it between two lines of a document, in the place of what is there.

    Raises:
        ValueError: the document lacks one of the lines.
    """
    before, begun, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not (begun and ended):
        raise ValueError(f"{document} lacks the lines between which the figures go: {begin} and {end}")
    document.write_text(f"{before}{begin}\n{make()}\n{end}{after}")
