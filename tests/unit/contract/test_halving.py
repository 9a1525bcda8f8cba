"""Successive halving: which trials continue from a rung, whatever the order in which they come there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.sweeps.halving import (
    Climber,
    HalvingRule,
    HalvingVerdict,
    Mark,
    Standing,
    moves,
    standings,
    stored_verdict,
)
from lorarl_api.sweeps.objective import Goal
from lorarl_api.sweeps.stopping import Verdict

RULE = HalvingRule(start_after=10, factor=3)


def at(step: int, value: float, **more: object) -> Climber:
    return Climber(curve=[(step, value)], **more)  # type: ignore[arg-type]


def stand(*trials: Climber, goal: Goal = Goal.MAXIMIZE, rule: HalvingRule = RULE) -> str:
    """+ continues, ? may still continue, - does not."""
    found = standings(dict(enumerate(trials)), goal, rule).values()
    return "".join("+" if one.verdict is None else "-" if one.verdict.final else "?" for one in found)


WAITS = Climber()


@pytest.mark.parametrize(
    ("trials", "goal", "expected"),
    [
        ([at(9, 0.1), WAITS, WAITS], "Maximize", "+++"),  # each may make startAfter steps
        ([at(10, 0.9), WAITS, WAITS], "Maximize", "?++"),
        ([at(10, 0.9), at(10, 0.1), WAITS], "Maximize", "?-+"),  # one of three continues, and it is not the second
        ([at(10, 0.9), at(10, 0.1), at(10, 0.5)], "Maximize", "+--"),
        ([at(10, 0.9), at(10, 0.1), at(10, 0.5)], "Minimize", "-+-"),
        ([at(10, 0.9), at(10, 0.1), at(10, 0.5), *[WAITS] * 6], "Maximize", "+??++++++"),  # as soon as there are three
        ([at(10, 0.5), at(10, 0.5), at(10, 0.5)], "Maximize", "+--"),  # the first of equal ones
        ([at(10, math.nan), at(10, -9.0), at(10, math.inf)], "Maximize", "-+-"),
        ([at(10, math.nan), at(10, math.nan)], "Maximize", "+-"),  # one at least continues
        ([at(10, 0.9), Climber(curve=[])], "Maximize", "?+"),
        ([at(10, 0.9), Climber(ended=True)], "Maximize", "++"),  # nothing more comes to the rung
        ([at(30, 0.9), Climber(curve=[(8, 0.5), (12, 0.95)]), at(9, 0.1)], "Maximize", "?-+"),  # 12 is not the rung
        ([Climber(curve=[(15, 0.9)]), Climber(curve=[(5, 0.1), (20, 1.0)])], "Maximize", "+-"),  # its first value after
        ([at(10, 0.1, exempt=True), at(10, 0.9), at(10, 0.5)], "Maximize", "++-"),
        ([at(10, 0.1, ended=True), at(10, 0.9), at(10, 0.5)], "Maximize", "++-"),
        ([at(10, 0.1, steps=10), at(10, 0.9), at(10, 0.5)], "Maximize", "++-"),  # no rung at its end
    ],
)
def test_how_trials_stand_at_the_first_rung(trials: list[Climber], goal: str, expected: str) -> None:
    assert stand(*trials, goal=Goal(goal)) == expected


def test_rungs_are_climbed_one_by_one() -> None:
    nine = [Climber(curve=[(10, value / 10), (30, value / 10)]) for value in range(9)]
    assert stand(*nine) == "--------+"
    third = [replace(one, curve=one.curve[:1]) for one in nine]
    assert stand(*third) == "------+++"
    assert stand(*third[:8], nine[8]) == "------++?"
    assert stand(*third[:7], nine[7], nine[8]) == "------+-?"
    assert stand(*third[:7], nine[7], replace(nine[8], ended=True)) == "------+-+"
    assert stand(*third[:6], nine[7], nine[8]) == "-------+", "one of two at least"


def test_a_promotion_stays_and_a_failure_promotes_the_next() -> None:
    first = (at(10, 0.3), at(10, 0.2), at(10, 0.1))
    marks = standings(dict(enumerate(first)), Goal.MAXIMIZE, RULE)[0].marks
    assert marks == (Mark(10, 0.3, promoted=True),)
    later = [replace(first[0], marks=marks), *first[1:], *[at(10, 0.9)] * 3]
    assert stand(*later) == "+--++-", "two of six, and the one of before"
    assert stand(*first[1:]) == "+-", "without one that failed"
    thinned = replace(first[0], curve=[(11, 0.0)], marks=marks)
    assert standings({0: thinned}, Goal.MAXIMIZE, RULE)[0].marks == marks


def test_why_a_trial_does_not_go_on_is_said() -> None:
    verdict = standings(dict(enumerate([at(10, 0.3), at(10, 0.25)])), Goal.MAXIMIZE, RULE)[1].verdict
    assert str(verdict) == "its 0.25 at step 10 is number 2 of 2, and at most 1 of all that come there continues"
    assert stored_verdict({"step": 10, "value": 0.25, "rank": 2, "reached": 2, "most": 1}) == verdict
    assert isinstance(stored_verdict({"step": 10, "value": 0.2, "median": 0.3, "others": 2}), Verdict)
    assert "number 4 of 9, and at most 3 of all that come there continue" in str(HalvingVerdict(10, 0.1, 4, 9, 3))
    undecided = str(HalvingVerdict(10, 0.1, rank=1, reached=1, most=2))
    assert undecided.endswith("number 1 of 1 so far, and at most 2 of all that come there continue")


def climbed(values: list[float], places: int, steps: int = 100) -> list[int]:
    """The steps that trials of these values make, each step with all that have a place, as operator and command do."""
    trials = {number: Climber(steps=steps) for number in range(len(values))}
    waiting, running = list(trials), list[int]()
    while waiting or running:
        found = standings(trials, Goal.MAXIMIZE, RULE)
        trials = {number: replace(one, marks=found[number].marks) for number, one in trials.items()}
        verdicts = {number: one.verdict for number, one in found.items() if one.verdict and not trials[number].ended}
        held = [number for number in trials if number not in (*waiting, *running) and not trials[number].ended]
        waiting = [number for number in held if number not in verdicts] + waiting
        running = [number for number in running if number not in verdicts or not verdicts[number].final]
        running = [number for number in running if not trials[number].ended]
        undecided = {number: one for number, one in verdicts.items() if not one.final}
        has_place = {number: one for number, one in undecided.items() if number in running}
        has_none = {number: one for number, one in undecided.items() if number in held}
        leaving, returning = moves(has_place, has_none, len(waiting) - (places - len(running)))
        running = [number for number in running if number not in leaving] + returning
        for _ in range(min(len(waiting), places - len(running))):
            running.append(waiting.pop(0))
        for number in running:
            done = len(trials[number].curve) + 1
            curve = [*trials[number].curve, (done, values[number])]
            trials[number] = replace(trials[number], curve=curve, ended=done == steps)
    return [len(one.curve) for one in trials.values()]


RISING = [value / 10 for value in range(9)]


@pytest.mark.parametrize(
    ("values", "places", "expected"),
    [
        (RISING, 9, [10] * 6 + [30, 30, 100]),  # as in the first paper: 9, then 3, then 1
        (RISING[::-1], 9, [100, 30, 30] + [10] * 6),
        (RISING[::-1], 1, [100, 30, 30] + [10] * 6),
        (RISING, 1, [10, 10, 30, 30, 90, 90, 100, 100, 100]),  # the worst order: each is the best so far
        (RISING[::2] + RISING[1::2], 1, [10, 10, 30, 30, 100, 10, 10, 10, 30]),
    ],
)
def test_nine_trials_make_few_steps_but_for_the_best(values: list[float], places: int, expected: list[int]) -> None:
    assert climbed(values, places) == expected


VALUES = st.sampled_from([0.0, 0.25, 0.5, math.nan]) | st.floats(-1, 1)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(Goal), st.integers(1, 4), st.integers(2, 4), st.integers(1, 4))
def test_any_history_ends_with_the_best_and_no_decision_is_taken_back(
    data: st.DataObject, goal: Goal, start_after: int, factor: int, places: int
) -> None:
    """Trials train step by step; those that are held give their place away, and nothing but the marks is remembered."""
    rule, steps = HalvingRule(start_after, factor), 30
    trials = {number: Climber(steps=steps) for number in range(data.draw(st.integers(1, 9)))}
    values = {number: data.draw(st.lists(VALUES, min_size=steps, max_size=steps)) for number in trials}
    promoted: set[tuple[int, int]] = set()
    for _ in range(steps * len(trials)):
        found = standings(trials, goal, rule)
        trials = {number: replace(one, marks=found[number].marks) for number, one in trials.items()}
        assert standings(trials, goal, rule) == found, "a restart decides the same"
        now = {(number, mark.step) for number, one in found.items() for mark in one.marks if mark.promoted}
        assert now >= {(number, step) for number, step in promoted if number in trials}
        promoted = now
        stopped = [number for number, one in found.items() if one.verdict]
        assert all(trials[number].curve[-1][0] >= start_after for number in stopped)
        trains = [number for number, one in trials.items() if not one.ended and number not in stopped]
        if not trains:
            break
        number = data.draw(st.sampled_from(trains[:places]))
        if len(trials) > 1 and not data.draw(st.integers(0, 30)):
            del trials[number]  # it failed
            continue
        done = len(trials[number].curve) + 1
        curve = [*trials[number].curve, (done, values[number][done - 1])]
        trials[number] = replace(trials[number], curve=curve, ended=done == steps)
    ends(trials, found, rule, goal)


def ends(trials: dict[int, Climber], found: dict[int, Standing], rule: HalvingRule, goal: Goal) -> None:
    """Nothing waits forever: each trial has ended or is stopped for good, and the best of each rung continued."""
    assert any(one.ended for one in trials.values())
    for key, one in trials.items():
        verdict = found[key].verdict
        assert one.ended == (verdict is None) and (verdict is None or verdict.final)
    for number in range(5):
        climbed = [one.marks[number] for one in found.values() if len(one.marks) > number]
        finite = [mark.value for mark in climbed if math.isfinite(mark.value)]
        best = goal.best(*finite) if finite else math.nan
        assert not climbed or any(mark.promoted and (mark.value == best or not finite) for mark in climbed)
