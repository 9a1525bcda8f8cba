"""The objective of a sweep: whether less or more of it is better, and which trial is the best by it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum

_LESS = re.compile(r"(eval_(.+/)?|critic/)?loss|(teacher/|rollout_)?kl")


class Goal(StrEnum):
    """Which values of an objective are better."""

    MAXIMIZE = "Maximize"
    MINIMIZE = "Minimize"

    def better(self, one: float, other: float) -> bool:
        """Return whether a value is strictly better than another one."""
        return one < other if self is Goal.MINIMIZE else one > other

    def best(self, *values: float) -> float:
        """Return the best of some values, at least one."""
        return min(values) if self is Goal.MINIMIZE else max(values)


def usual_goal(column: str) -> Goal:
    """Return the goal for a column of metrics.jsonl: less of a loss or of a divergence is better, more of all else."""
    return Goal.MINIMIZE if _LESS.fullmatch(column) else Goal.MAXIMIZE


def best_of[Key](values: Mapping[Key, float], goal: Goal) -> list[Key]:
    """Return the trials with the best value, in their order: the first one is chosen, and the others equal it.

    Values that are no finite number count only if there are no others.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no trial has a value")
    finite = {trial: value for trial, value in values.items() if math.isfinite(value)}
    wanted = goal.best(*finite.values()) if finite else None
    return [trial for trial, value in finite.items() if value == wanted] or list(values)
