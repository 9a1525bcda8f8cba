"""Tables in the terminal: aligned columns that stay readable in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows with aligned columns, two spaces apart. The first row is the heading."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def age(then: datetime, now: datetime) -> str:
    """Return how long ago a time was, in its largest unit: 12 s ago, 5 min ago, 3 h ago, 2 days ago."""
    passed = max(now - then, timedelta())
    if passed.days:
        return f"{passed.days} day{'s' if passed.days > 1 else ''} ago"
    for seconds, unit in ((3600, "h"), (60, "min")):
        if passed.seconds >= seconds:
            return f"{passed.seconds // seconds} {unit} ago"
    return f"{passed.seconds} s ago"
