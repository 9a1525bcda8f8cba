"""Generated parts of documents that people write, and the comparison of generated files with what is there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def between(text: str, subject: str, generated: str) -> str:
    """Replace what a document has between the two marks of a subject.

    Raises:
        ValueError: the document lacks them.
    """
    begin, end = f"<!-- {subject}: written by `make generate` -->", f"<!-- end of the {subject} -->"
    if begin not in text or end not in text:
        raise ValueError(f"the document lacks {begin} or {end}")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{generated}\n{end}{rest.partition(end)[2]}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def update(made: Mapping[Path, str], *, check: bool) -> int:
    """Write the files that differ from what was generated; with `check`, only name them.

    Returns:
        The exit code: 1 if `check` finds a difference.
    """
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            print(f"{path} is out of date. Run `make generate` and commit it.", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[path], encoding="utf-8")
            print(f"wrote {path}")
    return int(check and bool(stale))
