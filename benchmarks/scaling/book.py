"""Makes the rows that are missing from the raw figures, and keeps each at once: a break costs the row it is in."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.rows import Row
from toy import read_figures, write_figures

type Record = Mapping[str, Any]
"""A row's figures: its name as `row`, when, by which commit and command and where it was made, and the `run`."""


def missing(rows: Iterable[Row], records: Sequence[Record]) -> list[Row]:
    """Return the rows that have no record."""
    kept = {record["row"] for record in records}
    return [row for row in rows if row.name not in kept]


def make_missing(rows: Sequence[Row], raw: Path, make: Callable[[Row], Record]) -> list[str]:
    """Make a record of each row that has none, in their order; return what failed, whose rows stay missing."""
    failed = []
    for row in missing(rows, read_figures(raw, [])):
        try:
            record = make(row)
        except (subprocess.SubprocessError, OSError, ValueError, LookupError) as error:
            failed.append(f"{row.name}: {type(error).__name__}: {error}")
            continue
        write_figures(raw, [*read_figures(raw, []), {"row": row.name, **record}])
    return failed
