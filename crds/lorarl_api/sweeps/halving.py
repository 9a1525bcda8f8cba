"""Successive halving: at each rung of steps, the best of the trials that reached it continue."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lorarl_api.sweeps.objective import Goal
from lorarl_api.sweeps.stopping import Curve, Verdict, value_at

FACTOR = 3
"""Usual factor, as in Hyperband."""


@dataclass(frozen=True)
class HalvingRule:
    """Where the rungs are, and how many continue from each.

    Attributes:
        start_after: steps of the first rung, at least 1.
        factor: of steps between two rungs, at least 2. One trial of so many continues.
    """

    start_after: int
    factor: int

    def rung(self, number: int) -> int:
        """Return the steps of a rung; the first is number 0."""
        return self.start_after * self.factor**number


@dataclass(frozen=True)
class Mark:
    """What a trial had at a rung. It is kept: a curve may lose points later.

    Attributes:
        step: that of the rung.
        value: of the objective there.
        promoted: whether the trial may continue from there. It stays so.
    """

    step: int
    value: float
    promoted: bool


@dataclass(frozen=True)
class Climber:
    """A trial as halving sees it. One that failed is none: the next best takes its place.

    Attributes:
        curve: its values until now, which may be NaN.
        steps: all that it is to make; None if that is not known.
        marks: what is known of it from earlier decisions.
        ended: whether it has made its steps.
        exempt: whether it always continues.
    """

    curve: Curve = ()
    steps: int | None = None
    marks: tuple[Mark, ...] = ()
    ended: bool = False
    exempt: bool = False


@dataclass(frozen=True)
class HalvingVerdict:
    """Why a trial does not continue from a rung.

    Attributes:
        step: that of the rung.
        value: of the trial there.
        rank: of that value, 1 for the best.
        reached: how many trials have a value there.
        most: how many may continue in the end, of these and of those that can still come there.
    """

    step: int
    value: float
    rank: int
    reached: int
    most: int

    def __str__(self) -> str:
        so_far = "" if self.final else " so far"
        most = f"at most {self.most} of all that come there {'continues' if self.most == 1 else 'continue'}"
        return f"its {self.value:.4g} at step {self.step} is number {self.rank} of {self.reached}{so_far}, and {most}"

    @property
    def final(self) -> bool:
        """Whether no other trial can change it, unless a better one fails. Otherwise the trial may still continue."""
        return self.rank > self.most


def stored_verdict(found: Mapping[str, Any]) -> Verdict | HalvingVerdict:
    """Return what stopped a trial, from the fields of the verdict.

    Raises:
        TypeError: they are those of none.
    """
    return HalvingVerdict(**found) if "rank" in found else Verdict(**found)


@dataclass(frozen=True)
class Standing:
    """What halving says of a trial.

    Attributes:
        marks: one for each rung that it has reached.
        verdict: why it does not continue; None if it does.
    """

    marks: tuple[Mark, ...]
    verdict: HalvingVerdict | None


def standings[Key: Hashable](trials: Mapping[Key, Climber], goal: Goal, rule: HalvingRule) -> dict[Key, Standing]:
    """Return how each trial stands. The same trials with the new marks stand the same.

    Of `n` trials with a value at a rung, the best `n // factor` are promoted, as soon as there are so many. What is
    promoted stays so. Once no other trial can reach the rung, one at least is promoted. A trial stands for good if as
    many are better as can continue at most. Equal values rank in the order of the trials, and values that are no finite
    number after all others. A trial without a value at a rung counts there from its first value after it.

    These are the rungs of successive halving (Jamieson and Talwalkar, AISTATS 2016), and the promotions of ASHA, its
    asynchronous form (Li et al., MLSys 2020, algorithm 2). ASHA has trials without end, and so never closes a rung.
    """
    marks = {key: dict(_reached(one, rule)) for key, one in trials.items()}
    verdicts: dict[Key, HalvingVerdict] = {}
    climbing, number = list(trials), 0  # all that have passed the rungs below, or may still do so
    while any(number in marks[key] for key in climbing):
        step = rule.rung(number)
        here = [key for key in climbing if number in marks[key] and key not in verdicts]
        coming = [key for key in climbing if key not in here and _may_reach(trials[key], step)]
        most = max(1, (len(here) + len(coming)) // rule.factor)
        now = len(here) // rule.factor if coming else most
        ranked = sorted(here, key=lambda key: _order(marks[key][number].value, goal))
        for rank, key in enumerate(ranked, 1):
            mark = marks[key][number]
            if mark.promoted or rank <= now or trials[key].exempt:
                marks[key][number] = replace(mark, promoted=True)
            elif not trials[key].ended:
                verdicts[key] = HalvingVerdict(step, mark.value, rank, len(here), most)
        passed = [key for key in here if key not in verdicts and marks[key][number].promoted]
        undecided = [key for key in here if key in verdicts and not verdicts[key].final]
        climbing, number = [key for key in climbing if key in {*coming, *passed, *undecided}], number + 1
    return {key: Standing(tuple(marks[key].values()), verdicts.get(key)) for key in trials}


def moves[Key: Hashable](
    running: Mapping[Key, HalvingVerdict], held: Mapping[Key, HalvingVerdict], wanted: int
) -> tuple[list[Key], list[Key]]:
    """Return which trials of no final verdict give their places to others, and which of the held ones take free places.

    Those of the lowest rungs leave first, and there the worst. In the opposite order they take places.

    Args:
        running: those that have a place.
        held: those that have none.
        wanted: places that others need, beyond the free ones. If it is negative, so many are left over.
    """
    return _worst_first(running)[: max(0, wanted)], _worst_first(held)[::-1][: max(0, -wanted)]


def _worst_first[Key: Hashable](undecided: Mapping[Key, HalvingVerdict]) -> list[Key]:
    return sorted(undecided, key=lambda key: (undecided[key].step, -undecided[key].rank))


def _reached(trial: Climber, rule: HalvingRule) -> Iterator[tuple[int, Mark]]:
    """The marks of a trial by the rung's number, the recorded ones as they are."""
    recorded, number = {mark.step: mark for mark in trial.marks}, 0
    while (step := rule.rung(number)) < (trial.steps or math.inf):
        value = value_at(trial.curve, step)
        if value is None:
            value = next((value for at, value in trial.curve if at >= step), None)
        if step not in recorded and value is None:
            return
        yield number, recorded.get(step) or Mark(step, value if value is not None else math.nan, promoted=False)
        number += 1


def _may_reach(trial: Climber, step: int) -> bool:
    return not trial.ended and step < (trial.steps or math.inf)


def _order(value: float, goal: Goal) -> tuple[bool, float]:
    """Sort by this: the best comes first, and what is no finite number last."""
    if not math.isfinite(value):
        return True, 0.0
    return False, value if goal is Goal.MINIMIZE else -value
