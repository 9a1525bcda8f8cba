"""Successive halving of jobs whatever happens: refusals, failures, deletions, and an operator that is killed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_operator.decide.status import FINISHED
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.decide.sweep_trials import ENDED
from unit.operator.sweep_world import UNFINISHED, World, name

SEEDS = range(4)
STEPS = 8
"""Steps of each trial."""
SEED = st.sampled_from(SEEDS)
EVENTS = st.one_of(
    st.tuples(st.just("train"), SEED),
    st.tuples(st.just("train"), SEED),
    st.tuples(st.sampled_from(["fail", "delete", "refuse", "refuse for good", "allow"]), SEED),
    st.tuples(st.sampled_from(["kill", "places"]), st.integers(0, 3)),
    st.tuples(st.just("minute"), st.just(0)),
)
VALUES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0]), min_size=STEPS, max_size=STEPS)


def act(world: World, what: str, which: int, values: list[list[float]]) -> None:
    job = name(which)
    match what:
        case "kill":
            world.step(killed_after=which)
        case "places":
            world.spec["parallelism"] = which + 1
        case "minute":
            world.now += timedelta(seconds=61)
        case "refuse" | "refuse for good":
            reason = Sweeping.REFUSED if what == "refuse for good" else Sweeping.FORBIDDEN
            world.refuses[job] = reason, what == "refuse for good"
        case "allow":
            world.refuses.pop(job, None)
        case "delete" if job in world.jobs and world.trial(which).get("uid"):
            del world.jobs[job]
        case "fail" if job in world.jobs and world.phase(job) == "Running":
            world.set_phase(job, "Failed")
        case "train":
            train(world, which, values)


def train(world: World, seed: int, values: list[list[float]]) -> None:
    """A job that has machines, or gets some, makes a step."""
    job = name(seed)
    if job not in world.jobs or world.jobs[job]["spec"].get("suspend") or world.phase(job) in FINISHED:
        return
    step = world.jobs[job].get("status", {}).get("step", 0)
    if step < STEPS:
        world.reports(job, step + 1, values[seed][step], STEPS)
    else:
        world.set_phase(job, "Succeeded")


def promoted(rungs: list[dict[str, Any]]) -> bool:
    return all(rung["promoted"] for rung in rungs)


def rests(world: World) -> None:
    """The operator decides and jobs obey until nothing more is to do. Then no place is idle that a trial could use."""
    for _ in range(50):
        world.settle()
        before = {job: world.phase(job) for job in world.jobs}
        for job in world.jobs:
            world.obeys(job)
        if before == {job: world.phase(job) for job in world.jobs}:
            break
    else:
        raise AssertionError(f"jobs are suspended and continued forever: {world.status}")
    used = sum(world.phase(job) in UNFINISHED for job in world.jobs)
    trials: list[dict[str, Any]] = world.status["trials"]
    if used < world.spec["parallelism"]:
        idle = [one["name"] for one in trials if one["phase"] == "Suspended" or one["phase"] == "Waiting"]
        assert all(name in world.refuses for name in idle), (idle, trials)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(EVENTS, max_size=40),
    st.lists(VALUES, min_size=len(SEEDS), max_size=len(SEEDS)),
    st.integers(1, 4),
    st.integers(2, 4),
    st.integers(1, 3),
)
def test_any_history_ends_without_an_idle_place(
    history: list[tuple[str, int]], values: list[list[float]], places: int, factor: int, start_after: int
) -> None:
    world = World(stopping={"halving": {"startAfter": start_after, "factor": factor}}, parallelism=places)
    rests(world)
    for what, which in history:
        act(world, what, which, values)
        rests(world)
    for _ in range(STEPS * len(SEEDS)):
        world.now += timedelta(seconds=61)
        rests(world)
        for seed in SEEDS:
            train(world, seed, values)
    rests(world)
    trials: list[dict[str, Any]] = world.status["trials"]
    assert all(one["phase"] in ENDED or one["name"] in world.refuses for one in trials), trials
    there = [one for one in trials if one["name"] in world.jobs and one["phase"] != "Failed"]
    assert not there or any(one["phase"] == "Succeeded" for one in there), "not all are stopped"
    for rung in range(4):
        # One that trained on in a free place may have a value at a rung that it was not promoted to.
        climbed = [one for one in there if len(rungs := one.get("rungs") or ()) > rung and promoted(rungs[:rung])]
        best = max((one["rungs"][rung]["value"] for one in climbed), default=None)
        # It may have no promotion while a trial that is refused could still come, but is not stopped there.
        of_best = [one for one in climbed if one["rungs"][rung]["value"] == best]
        assert not climbed or any(one["phase"] == "Succeeded" or one["rungs"][rung]["promoted"] for one in of_best)
    before = world.status
    world.not_made = {}
    rests(world)
    kept = [{key: one.get(key) for key in ("name", "phase", "stopped", "rungs")} for one in before["trials"]]
    assert [
        {key: one.get(key) for key in ("name", "phase", "stopped", "rungs")} for one in world.status["trials"]
    ] == kept
