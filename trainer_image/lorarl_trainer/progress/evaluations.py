"""The evaluations of a run, from the columns of metrics.jsonl."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lorarl_trainer.samples.columns import COMPONENT, eval_column

_RESULT = re.compile(r"eval_(?:(?P<name>[^/]+)/)?(?P<metric>score|loss)")
_FALL = 0.05
"""Share of a component's mean whose loss is named."""
_SECONDS = re.compile(r"eval_(?:[^/]+/)?seconds")


def is_eval_seconds(column: str) -> bool:
    """Return whether a column has the duration of an evaluation."""
    return _SECONDS.fullmatch(column) is not None


def evaluations_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of each evaluation, `data.eval` first.

    Each has its `name` (empty for `data.eval`), its `metric` (score or loss), and that metric `before` training and
    `after` the last step that was evaluated, which is `step`. `before_interval` and `after_interval` are 95% intervals,
    and None for a single row. `rows` is the number of held-out rows. `pass_at` has the newest pass@k by k.
    """
    found: dict[str, str] = {}
    for row in rows:
        for column, value in row.items():
            if value is not None and (result := _RESULT.fullmatch(column)):
                found.setdefault(result["name"] or "", result["metric"])
    return [_results(name, found[name], rows) for name in sorted(found, key=lambda name: name != "")]


def _results(name: str, metric: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    prefix, column = eval_column(name, ""), eval_column(name, metric)
    evaluated = [row for row in rows if row.get(column) is not None]
    before: Mapping[str, Any] = next((row for row in evaluated if row["step"] == 0), {})
    after: Mapping[str, Any] = next((row for row in reversed(evaluated) if row["step"] > 0), {})
    passed = {
        int(k[1]): value
        for other, value in evaluated[-1].items()
        if (k := re.fullmatch(rf"{prefix}pass_at_(\d+)", other))
    }
    return {
        "name": name,
        "metric": metric,
        "rows": evaluated[-1][f"{prefix}rows"],
        "before": before.get(column),
        "before_interval": _interval(before, column),
        "after": after.get(column),
        "after_interval": _interval(after, column),
        "step": after.get("step"),
        "pass_at": passed,
    }


def fallen_components(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Return the components of held-out rewards that fell although their score rose: column, before, and after.

    A score is a sum, so a part of what is wanted can be given up for the rest.
    """
    found = []
    for each in evaluations_of(rows):
        if each["metric"] != "score" or None in (each["before"], each["after"]) or each["after"] <= each["before"]:
            continue
        first = next(row for row in rows if row["step"] == 0)
        last = next(row for row in rows if row["step"] == each["step"])
        prefix = eval_column(each["name"], COMPONENT)
        for column in first:
            before, after = first[column], last.get(column)
            if not column.startswith(prefix) or before is None or after is None:
                continue
            if before - after > _FALL * abs(before):
                found.append((column, before, after))
    return found


def _interval(row: Mapping[str, Any], column: str) -> list[float] | None:
    ends = [row.get(f"{column}_{end}") for end in ("low", "high")]
    return None if None in ends else ends  # type: ignore[return-value]  # mypy does not see that none is None
