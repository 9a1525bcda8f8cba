"""Means with 95% confidence intervals, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lorarl_trainer.samples.statistics import normal_interval


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds of its 95% confidence interval; None where one value says nothing of its spread."""

    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its `normal_interval`.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    low, high = normal_interval(values) or (None, None)
    return Interval(math.fsum(values) / len(values), low, high)


def pass_at(samples: Sequence[Sequence[float]], passing: float) -> list[float]:
    """Return for each row whether any of its samples scored at least `passing`: 1 or 0, whose mean is pass@k."""
    return [float(any(score >= passing for score in row)) for row in samples]
