"""Successive halving of a sweep's jobs: which are held at a rung, which stop, and which continue."""

from __future__ import annotations

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
    assert world.trial(0)["reason"] == "AtRung" and "number 1 of 1, of which 2 continue" in world.trial(0)["message"]
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
