"""Means with 95% confidence intervals, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_Z = 1.959963984540054
"""The normal distribution's 97.5% quantile."""


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds of its 95% confidence interval; None where one value says nothing of its spread."""

    mean: float
    low: float | None
    high: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its interval by the normal approximation.

    For a gain, give the differences of the same rows: paired, they have the smaller spread.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("a mean needs at least one value")
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    margin = _Z * math.sqrt(variance / len(values))
    return Interval(mean, mean - margin, mean + margin)


def pass_at(samples: Sequence[Sequence[float]], passing: float) -> list[float]:
    """Return for each row whether any of its samples scored at least `passing`: 1 or 0, whose mean is pass@k."""
    return [float(any(score >= passing for score in row)) for row in samples]
