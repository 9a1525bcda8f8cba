"""The names of an evaluation's columns in metrics.jsonl."""

from __future__ import annotations

COMPONENT = "reward/"
"""What the names of a reward's components begin with, in metrics.jsonl and the trackers."""


def eval_column(name: str, metric: str) -> str:
    """Return the column of an evaluation of `data.evals`, or with an empty name of `data.eval`."""
    return f"eval_{name}/{metric}" if name else f"eval_{metric}"
