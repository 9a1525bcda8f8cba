"""Early stopping: which trials of a sweep are not worth their remaining steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from lorarl_api.sweeps.objective import Goal

START_AFTER, MIN_TRIALS = 10, 3
"""Usual values of a rule."""
type Curve = Sequence[tuple[int, float]]
"""A trial's values of the objective, with the steps after which each was reached, in order."""


@dataclass(frozen=True)
class MedianRule:
    """When the median may stop a trial.

    Attributes:
        start_after: steps that a trial may always make.
        min_trials: how many other trials must have reached its step.
    """

    start_after: int
    min_trials: int


@dataclass(frozen=True)
class Verdict:
    """Why a trial is stopped.

    Attributes:
        step: after which it is compared.
        value: its best until then.
        median: of the other trials at that step.
        others: how many these were.
    """

    step: int
    value: float
    median: float
    others: int

    def __str__(self) -> str:
        return (
            f"its best until step {self.step} is {self.value:.4g}, worse than the median "
            f"{self.median:.4g} of {self.others} other{'s' if self.others > 1 else ''} at that step"
        )

    @property
    def final(self) -> bool:
        """Whether no other trial can change it: what the median has stopped stays so."""
        return True


def stopped_by_median(curve: Curve, others: Sequence[Curve], goal: Goal, rule: MedianRule) -> Verdict | None:
    """Return why a trial is stopped after its newest step; None if it continues.

    It is stopped if its best value so far is strictly worse than the median of the values that the others had at its
    step. Trials that have not reached that step do not count, and those that ended after it do.

    This is the median stopping rule of Google Vizier (Golovin et al., KDD 2017, section 3.2.2). There the others count
    with the mean of their values up to the step. Here they count with their value at it, as in Optuna's MedianPruner.
    """
    trained = [(step, value) for step, value in curve if step > 0]
    if not trained or (step := trained[-1][0]) < max(1, rule.start_after):
        return None
    there = [value for other in others if (value := value_at(other, step)) is not None]
    if len(there) < max(1, rule.min_trials):
        return None
    best, middle = goal.best(*(value for _, value in trained)), median(there)
    return Verdict(step, best, middle, len(there)) if goal.better(middle, best) else None


def value_at(curve: Curve, step: int) -> float | None:
    """Return the newest value of a trial at a step; None if it has not reached that step, or had no value by then."""
    if not curve or curve[-1][0] < step:
        return None
    return next((value for at, value in reversed(curve) if at <= step), None)


def extended(curve: Curve, step: int, value: float, most: int) -> list[tuple[int, float]]:
    """Return a curve with a newer point, or with a newer value of its last step.

    A curve of more than `most` points loses every second one of its older ones. A step that is older than the last
    one begins a repetition: a trial that resumed from a checkpoint makes some steps again, which replace those before.
    """
    points = [*((at, before) for at, before in curve if at < step), (step, value)]
    while len(points) > most:
        points = [point for place, point in enumerate(points) if (len(points) - 1 - place) % 2 == 0]
    return points
