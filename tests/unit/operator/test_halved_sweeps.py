"""Successive halving of a sweep's jobs: which are held at a rung, which stop, and which continue."""

from __future__ import annotations

from datetime import timedelta

from lorarl_operator.decide.sweep_reasons import Sweeping
from unit.operator.sweep_world import World, name

HALVING = {"halving": {"startAfter": 5, "factor": 2}}


def train(world: World, seed: int, step: int) -> None:
    """A trial trains to a step, and is better the larger its seed."""
    world.reports(name(seed), step, seed / 10)
    world.settle()
    world.obeys(name(seed))
    world.settle()


def test_with_one_place_each_trial_reaches_the_rung_and_the_best_continue() -> None:
    world = World(stopping=HALVING, parallelism=1)
    world.settle()
    train(world, 0, 5)
    assert world.phases == ["Suspended", "Pending", "Waiting", "Waiting"] and world.status["finished"] == 0
    assert world.trial(0)["reason"] == "AtRung" and "1 of 1 so far, and at most 2 of" in world.trial(0)["message"]
    train(world, 1, 6)
    assert world.trial(1)["rungs"] == [{"step": 5, "value": 0.1, "promoted": True}]
    assert world.phases == ["Suspended", "Running", "Waiting", "Waiting"], "the better half of two continues at once"
    train(world, 1, 10)
    assert world.phases == ["Suspended", "Suspended", "Pending", "Waiting"]
    train(world, 2, 5)
    assert world.phases == ["Stopped", "Suspended", "Running", "Waiting"], "two of four are better than the first"
    stopped = {"step": 5, "value": 0.0, "rank": 3, "reached": 3, "most": 2}
    assert world.trial(0)["stopped"] == stopped and world.events.count("Stopped") == 1
    train(world, 2, 10)
    train(world, 2, 20)
    assert world.phases == ["Stopped", "Stopped", "Suspended", "Pending"], "it waits at the third rung"
    for step in (5, 10, 20):
        train(world, 3, step)
    assert world.phases == ["Stopped", "Stopped", "Stopped", "Running"]
    world.set_phase(name(3), "Succeeded")
    world.settle()
    assert world.status["phase"] == "Succeeded" and world.status["stopped"] == 3


def test_with_a_place_for_each_none_stops_before_it_is_known_to_be_worse() -> None:
    world = World(stopping=HALVING, parallelism=4)
    world.settle()
    for seed in (1, 3):
        train(world, seed, 5)
    assert world.phases == ["Pending", "Running", "Pending", "Running"] and "stopped" not in world.trial(1)
    train(world, 2, 5)
    world.obeys(name(1))
    world.settle()
    assert world.phases == ["Pending", "Stopped", "Running", "Running"]
    world.set_phase(name(3), "Failed")
    train(world, 0, 5)
    assert world.phases == ["Stopped", "Stopped", "Running", "Failed"], "one of three continues"
    world.set_phase(name(2), "Failed")
    world.settle()
    assert world.jobs[name(1)]["spec"]["suspend"] is False, "the next best takes the place of the best, which failed"
    world.spec["stopping"]["exempt"] = [name(0)]
    world.settle()
    assert world.jobs[name(0)]["spec"]["suspend"] is False


def test_none_is_held_if_only_the_places_become_fewer() -> None:
    world = World(stopping=HALVING, parallelism=4)
    world.settle()
    for seed in (2, 3):
        train(world, seed, 5)
    world.spec["parallelism"] = 1
    world.settle()
    assert world.phases == ["Pending", "Pending", "Running", "Running"]


def test_one_rule_takes_the_place_of_the_other() -> None:
    world = World(stopping=HALVING, parallelism=4)
    world.settle()
    for seed in (1, 2, 3):
        train(world, seed, 5)
    assert world.phases == ["Pending", "Stopping", "Running", "Running"]
    world.obeys(name(1))
    world.spec["stopping"] = {"median": {"startAfter": 5, "minTrials": 1}}
    world.settle()
    world.obeys(name(1))
    assert world.jobs[name(1)]["spec"]["suspend"] is False and "rungs" not in world.trial(1)
    train(world, 1, 5)
    assert "median" in world.trial(1)["stopped"] and world.phases[1] == "Stopped"
    world.spec["stopping"] = {"halving": {"startAfter": 20, "factor": 2}}
    world.settle()
    world.obeys(name(1))
    world.settle()
    assert world.phases[1] == "Pending" and "stopped" not in world.trial(1), "no one has reached its first rung"


def a_minute_passes(world: World) -> None:
    world.now += timedelta(seconds=61)
    world.settle()
    for job in list(world.jobs):
        world.obeys(job)
    world.settle()


def test_a_held_trial_continues_if_those_that_wait_can_have_no_job() -> None:
    world = World(stopping={"halving": {"startAfter": 5, "factor": 4}})
    world.refuses = {name(seed): (Sweeping.FORBIDDEN, False) for seed in (2, 3)}
    world.settle()
    train(world, 0, 5)
    assert world.phases[:2] == ["Suspended", "Pending"], "it gives its place to the third, which has not been tried"
    a_minute_passes(world)
    assert world.phases == ["Pending", "Pending", "Waiting", "Waiting"]
    train(world, 0, 6)
    train(world, 1, 5)
    for _ in range(3):
        a_minute_passes(world)
        assert world.phases == ["Stopped", "Running", "Waiting", "Waiting"], "it keeps its place while they are tried"
    world.refuses = {}
    a_minute_passes(world)
    assert world.phases == ["Stopped", "Suspended", "Pending", "Pending"], "both need a place now"
    train(world, 2, 5)
    world.obeys(name(1))
    world.settle()
    assert world.phases == ["Stopped", "Stopped", "Running", "Pending"], "the second is now worse than another one"


def test_a_place_of_refused_trials_is_given_back_to_them() -> None:
    world = World(stopping={"halving": {"startAfter": 5, "factor": 4}}, parallelism=1)
    world.refuses = {name(seed): (Sweeping.FORBIDDEN, False) for seed in (1, 2, 3)}
    world.settle()
    train(world, 0, 5)
    a_minute_passes(world)
    train(world, 0, 6)
    for _ in range(3):
        a_minute_passes(world)
        assert world.phases == ["Running", "Waiting", "Waiting", "Waiting"], "it loses nothing while they are refused"
    world.refuses = {name(3): (Sweeping.FORBIDDEN, False)}
    a_minute_passes(world)
    assert world.phases == ["Suspended", "Pending", "Waiting", "Waiting"]
    assert "reason" not in world.trial(2) and world.trial(3)["reason"] == "Forbidden"


def test_a_held_trial_takes_a_place_that_is_left_over() -> None:
    world = World(stopping={"halving": {"startAfter": 5, "factor": 2}}, parallelism=1)
    world.settle()
    train(world, 0, 5)
    assert world.phases == ["Suspended", "Pending", "Waiting", "Waiting"]
    world.spec["parallelism"] = 4
    world.settle()
    world.obeys(name(0))
    world.settle()
    assert world.phases == ["Pending"] * 4, "each has a place, so none is held"


def test_a_stopped_trial_without_its_job_takes_no_promotion() -> None:
    world = World(stopping={"halving": {"startAfter": 5, "factor": 4}}, parallelism=4)
    world.settle()
    for seed in range(4):
        train(world, seed, 5)
    for seed in range(3):
        world.obeys(name(seed))
    world.settle()
    stopped = world.trial(2)["stopped"]
    del world.jobs[name(2)]
    world.settle()
    assert world.trial(2)["phase"] == "Stopped" and world.trial(2)["stopped"] == stopped
    world.set_phase(name(3), "Failed")
    world.settle()
    assert world.jobs[name(1)]["spec"]["suspend"] is False, "the best that has a job continues"
    assert world.trial(2)["stopped"] == stopped and not world.trial(2)["rungs"][0]["promoted"]


def test_a_rule_that_can_stop_no_trial_is_said_once() -> None:
    world = World(stopping={"halving": {"startAfter": 200, "factor": 2}})
    world.settle()
    train(world, 0, 5)
    assert world.events.count("StopsNone") == 1 and world.phases[:2] == ["Running", "Pending"]
    assert "StopsNone" not in (fine := World(stopping=HALVING)).events and fine.step().actions
    assert "StopsNone" not in fine.events
