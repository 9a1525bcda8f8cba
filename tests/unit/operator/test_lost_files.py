"""Adapters whose files are deleted with their jobs: neither a schedule nor a sweep names them any more."""

from __future__ import annotations

import pytest

from unit.operator.schedule_world import World, hour
from unit.operator.sweep_world import World as Trials
from unit.operator.sweep_world import name as trial


def _delete(world: World, name: str, policy: str) -> None:
    """Someone deletes a job, whose checkpoints go with it if its policy says so."""
    job = world.jobs[name]
    job["spec"] = job["spec"] | {"checkpoint": job["spec"]["checkpoint"] | {"deletionPolicy": policy}}
    finalizers = {"finalizers": ["lorarl.io/cleanup"]} if policy == "Delete" else {}
    job["metadata"] |= {"deletionTimestamp": world.now.isoformat(), "deletionGracePeriodSeconds": 0, **finalizers}
    world.settle()


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_no_job_starts_from_an_adapter_that_was_deleted_with_its_job(policy: str, is_gone: bool) -> None:
    world = World(continueFrom="last")
    for number in (1, 2):
        world.passes(hours=1)
        world.ends(hour(number))
        world.settle()
    _delete(world, hour(2), policy)
    if is_gone:
        del world.jobs[hour(2)]
        world.settle()
    world.passes(hours=1)
    last = hour(1) if policy == "Delete" else hour(2)
    assert world.jobs[hour(3)]["spec"]["adapter"]["initFrom"] == f"s3://{last}/last"


def test_the_next_job_starts_with_a_new_adapter_if_none_is_left() -> None:
    world = World(continueFrom="last")
    world.passes(hours=1)
    world.ends(hour(1))
    world.settle()
    _delete(world, hour(1), "Delete")
    del world.jobs[hour(1)]
    world.passes(hours=1)
    assert "initFrom" not in (world.jobs[hour(2)]["spec"].get("adapter") or {})
    assert "lastAdapter" not in world.status


def test_a_deleted_trial_keeps_its_value_and_names_no_adapter() -> None:
    world = Trials()
    world.settle()
    world.reports(trial(0), 10, 0.9)
    world.set_phase(trial(0), "Succeeded")
    world.settle()
    assert world.status["best"]["uri"]
    job = world.jobs[trial(0)]
    job["spec"] = job["spec"] | {"checkpoint": job["spec"]["checkpoint"] | {"deletionPolicy": "Delete"}}
    job["metadata"] |= {"deletionTimestamp": world.now.isoformat(), "finalizers": ["lorarl.io/cleanup"]}
    world.settle()
    del world.jobs[trial(0)]
    world.settle()
    assert world.status["best"]["value"] == 0.9
    assert not {"uri", "sha256"} & world.status["best"].keys()
