"""Which trials of a sweep have a job, which are stopped, and what the status says, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from lorarl_api.load import Fault, faults
from lorarl_operator.decide import sweep
from lorarl_operator.decide.sweep_models import Suspend
from lorarl_operator.decide.sweep_reasons import Sweeping
from support.cluster.tools import tools_or_skip
from support.gitops import judged
from unit.operator.sweep_world import AXIS, FINISHED, World, name, stopping


@pytest.fixture(autouse=True, scope="module")
def checked_once() -> Iterator[None]:
    """The rules of a job take 30 ms, and histories make the same jobs again and again."""
    known: dict[str, list[Fault]] = {}

    def remembered(document: Any) -> list[Fault]:
        text = json.dumps(document, sort_keys=True)
        if text not in known:
            known[text] = faults(document)
        return known[text]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "faults", remembered)
        yield


def condition(world: World, kind: str) -> dict[str, Any]:
    return next((one for one in world.status["conditions"] if one["type"] == kind), {})


def test_some_trials_run_at_a_time_until_each_has_ended() -> None:
    world = World()
    world.labels = {"kueue.x-k8s.io/queue-name": "research", "team": "a"}
    world.settle()
    assert sorted(world.jobs) == [name(0), name(1)]
    assert world.phases == ["Pending", "Pending", "Waiting", "Waiting"]
    first = world.jobs[name(0)]
    assert first["spec"]["trainer"] == {"seed": 0} and first["metadata"]["annotations"] == {"lorarl.io/trial": "seed=0"}
    assert first["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "research", "lorarl.io/sweep": "sums"}
    assert first["metadata"]["ownerReferences"][0]["uid"] == "sweep-uid"
    world.reports(name(0), 10, 0.4)
    world.reports(name(1), 10, 0.6)
    world.settle()
    best = {
        "name": name(1),
        "label": "seed=1",
        "value": 0.6,
        "step": 10,
        "uri": f"s3://{name(1)}/10",
        "sha256": "a" * 64,
    }
    assert world.status["best"] == best and world.status["phase"] == "Running"
    world.set_phase(name(0), "Succeeded")
    world.settle()
    assert sorted(world.jobs) == [name(0), name(1), name(2)]
    said = [{"type": "Failed", "reason": "AppFailed", "message": "the reward raised"}]
    world.set_phase(name(1), "Failed", conditions=said)
    world.settle()
    assert world.trial(1)["reason"] == "AppFailed" and world.trial(1)["message"] == "the reward raised"
    for seed in (2, 3):
        world.set_phase(name(seed), "Succeeded")
    world.settle()
    counts = [world.status[key] for key in ("total", "active", "finished", "succeeded", "failed", "stopped")]
    assert counts == [4, 0, 4, 3, 1, 0] and world.status["phase"] == "Succeeded"
    assert condition(world, "Complete")["status"] == "True" and condition(world, "Running")["status"] == "False"
    assert "sums-seed-1 (AppFailed)" in condition(world, "Complete")["message"]
    assert world.events.count("TrialMade") == 4 and world.events.count("TrialSucceeded") == 3
    assert world.events[-1] == "Complete" and set(world.made.values()) == {1}


def test_a_trial_whose_values_are_not_valid_is_named_and_stops_no_other() -> None:
    world = World(over=[{"path": "spec.adapter.rank", "values": [0, 8]}, {"path": "spec.model.uri.x", "values": [1]}])
    world.settle()
    assert (
        world.phases == ["Refused", "Refused"] and "Set spec.model.uri itself" in world.status["trials"][0]["message"]
    )
    assert world.status["phase"] == "Failed" and condition(world, "Stalled")["reason"] == "NoneSucceeded"
    world = World(over=[{"path": "spec.adapter.rank", "values": [0, -1, 8]}], parallelism=1)
    world.settle()
    assert world.phases == ["Refused", "Refused", "Pending"]
    assert "spec.adapter.rank: got 0, expected" in world.status["trials"][0]["message"]


def test_a_job_that_is_refused_is_tried_again_if_that_can_help() -> None:
    world = World()
    world.refuses = {name(0): (Sweeping.REFUSED, True), name(1): (Sweeping.FORBIDDEN, False)}
    world.settle()
    assert world.phases == ["Refused", "Waiting", "Pending", "Pending"]
    assert world.trial(1)["reason"] == "Forbidden" and world.trial(1)["message"] == f"no {name(1)}"
    for seed in (2, 3):
        world.set_phase(name(seed), "Succeeded")
    world.settle()
    assert condition(world, "Stalled")["reason"] == "TrialsWait" and world.status["phase"] == "Pending"
    world.refuses = {}
    world.settle()
    assert name(1) not in world.jobs, "it is tried once a minute"
    assert 0 < (world.look().recheck_seconds or 0) <= 60
    world.now += timedelta(seconds=60)
    world.settle()
    assert world.phases == ["Refused", "Pending", "Succeeded", "Succeeded"] and "reason" not in world.trial(1)
    assert world.events.count("Refused") == world.events.count("Forbidden") == 1


def test_a_job_of_another_owner_is_never_taken_over() -> None:
    world = World()
    world.jobs[name(0)] = {"metadata": {"name": name(0), "uid": "other", "resourceVersion": "1"}, "spec": {}}
    world.settle()
    assert world.trial(0)["reason"] == "NameTaken" and "uid" not in world.trial(0)
    assert [world.phases[1], world.phases[2]] == ["Pending", "Pending"], "it takes no place"


def test_a_deleted_job_is_not_made_again_and_a_finished_one_counts() -> None:
    world = World()
    world.settle()
    world.reports(name(0), 10, 0.9)
    world.settle()
    world.set_phase(name(0), "Succeeded")
    world.settle()
    for seed in (0, 1):
        del world.jobs[name(seed)]
    world.settle()
    assert world.phases == ["Succeeded", "Deleted", "Pending", "Pending"]
    assert world.status["best"]["name"] == name(0) and world.made[name(1)] == 1
    assert world.status["failed"] == 1 and "TrialDeleted" in world.events


def test_a_suspended_sweep_suspends_its_trials_and_continues_with_them() -> None:
    world = World()
    world.settle()
    world.reports(name(0), 1, 0.1)
    world.jobs[name(1)]["spec"]["suspend"] = True  # a user does this
    world.obeys(name(1))
    world.spec["suspend"] = True
    world.settle()
    assert world.status["phase"] == "Suspending" and condition(world, "Reconciling")
    world.obeys(name(0))
    world.settle()
    assert world.status["phase"] == "Suspended" and len(world.jobs) == 2
    world.spec["suspend"] = False
    world.settle()
    suspended = [world.jobs[name(seed)]["spec"]["suspend"] for seed in (0, 1)]
    assert suspended == [False, True], "what a user has suspended stays so"
    assert len(world.jobs) == 2, "and takes a place"
    assert "suspended" not in world.trial(0)


def test_a_sweep_is_suspended_although_a_queue_keeps_a_trial_stopped() -> None:
    """The job stays Pending: a new RayJob would have a Workload that no administrator has stopped."""
    world = World()
    world.settle()
    world.stops(name(0))
    world.set_phase(name(1), "Succeeded")
    world.settle()
    assert world.trial(0)["phase"] == "Pending", "it goes on by itself"
    world.spec["suspend"] = True
    world.settle()
    world.obeys(name(2))
    world.settle()
    assert world.phase(name(0)) == "Pending" and world.trial(0)["phase"] == "Suspended"
    assert world.status["phase"] == "Suspended" and not condition(world, "Reconciling")
    world.spec["suspend"] = False
    world.settle()
    assert world.trial(0)["phase"] == "Pending" and world.jobs[name(0)]["spec"]["suspend"] is False


def test_a_trial_below_the_median_is_stopped_and_its_place_is_free() -> None:
    world = World(stopping=stopping())
    world.settle()
    world.reports(name(0), 5, 0.8)
    world.reports(name(1), 4, 0.1)
    world.settle()
    assert world.phases[:2] == ["Running", "Running"], "it has startAfter steps"
    world.reports(name(1), 5, 0.2)
    world.settle()
    assert world.trial(1)["phase"] == "Stopping" and world.jobs[name(1)]["spec"]["suspend"] is True
    assert world.trial(1)["stopped"] == {"step": 5, "value": 0.2, "median": 0.8, "others": 1}
    assert len(world.jobs) == 2, "its machines are not free yet"
    world.obeys(name(1))
    world.settle()
    assert world.phases == ["Running", "Stopped", "Pending", "Waiting"] and world.status["stopped"] == 1
    assert world.events.count("Stopped") == 1 and world.trial(1)["uri"], "it keeps its adapter"
    world.spec["stopping"]["exempt"] = [name(1)]
    world.settle()
    assert world.jobs[name(1)]["spec"]["suspend"] is True, "there is no place"
    world.set_phase(name(2), "Succeeded")
    world.settle()
    assert world.jobs[name(1)]["spec"]["suspend"] is False and name(3) not in world.jobs
    world.obeys(name(1))
    world.reports(name(1), 9, 0.2)
    world.settle()
    assert world.trial(1)["phase"] == "Running" and "stopped" not in world.trial(1)


@pytest.mark.parametrize("without_objective", [False, True])
def test_without_stopping_trials_that_it_stopped_continue(without_objective: bool) -> None:
    world = World(stopping=stopping(), over=[AXIS | {"values": [0, 1]}])
    world.settle()
    world.reports(name(0), 5, 0.8)
    world.reports(name(1), 5, 0.2)
    world.settle()
    world.obeys(name(1))
    world.set_phase(name(0), "Succeeded")
    world.settle()
    assert world.status["phase"] == "Succeeded" and world.status["completionTime"]
    del world.spec["stopping"]
    world.spec.pop("objective" if without_objective else "stopping", None)
    world.settle()
    world.obeys(name(1))
    world.settle()
    assert world.phases == ["Succeeded", "Pending"] and world.status["phase"] == "Running"
    assert "completionTime" not in world.status and "points" not in world.trial(1)


def test_less_of_a_loss_is_better_and_goal_says_otherwise() -> None:
    for more, best in (({}, 1), ({"goal": "Maximize"}, 0)):
        world = World(objective={"metric": "evalScore", **more})
        world.spec["template"]["spec"] = world.spec["template"]["spec"] | {"algorithm": {"type": "sft"}}
        del world.spec["template"]["spec"]["reward"]
        world.settle()
        world.reports(name(0), 5, 0.8)
        world.reports(name(1), 5, 0.2)
        world.settle()
        assert world.status["best"]["name"] == name(best)


def test_a_sweep_whose_time_is_over_is_deleted() -> None:
    world = World(ttlSecondsAfterFinished=100, over=[AXIS | {"values": [0]}])
    world.settle()
    world.set_phase(name(0), "Succeeded")
    world.settle()
    assert not world.deleted and 90 < (world.look().recheck_seconds or 0) <= 100
    world.now += timedelta(seconds=100)
    world.step()
    assert world.deleted


def test_a_spec_that_this_operator_cannot_use_keeps_what_is_known() -> None:
    world = World()
    world.settle()
    world.spec["novelty"] = 1
    world.settle()
    assert (
        condition(world, "Stalled")["reason"] == "Invalid" and "spec.novelty" in condition(world, "Failed")["message"]
    )
    del world.spec["novelty"]
    world.settle()
    assert world.phases[:2] == ["Pending", "Pending"] and set(world.made.values()) == {1}


def test_newer_numbers_alone_are_not_pressing() -> None:
    world = World()
    world.settle()
    world.reports(name(0), 5, 0.5)
    world.settle()
    world.reports(name(0), 6, 0.6)
    decision = world.look()
    assert decision.status is not None and not decision.pressing and not decision.events
    world.set_phase(name(0), "Succeeded")
    assert world.look().pressing


def test_equal_trials_are_named_beside_the_best() -> None:
    world = World(over=[AXIS | {"values": [0, 1, 2]}], parallelism=3)
    world.settle()
    for seed, value in ((0, 0.4), (1, 0.6), (2, 0.6)):
        world.reports(name(seed), 10, value)
    world.settle()
    assert world.status["best"]["name"] == name(1) and world.status["best"]["equal"] == [name(2)]


def test_a_successor_tells_suspensions_from_those_of_users() -> None:
    world = World()
    world.settle()
    world.spec["suspend"] = True
    decision = world.step(killed_after=1)
    assert any(isinstance(one, Suspend) for one in decision.actions) and world.trial(0)["suspended"]
    assert not world.jobs[name(0)]["spec"].get("suspend"), "it was killed before that"
    world.spec["suspend"] = False
    world.settle()
    assert "suspended" not in world.trial(0)


def test_each_phase_as_kstatus_and_argo_cd_see_it() -> None:
    """Argo CD's script for jobs is the one for sweeps too."""
    worlds = {"Running": World(), "Suspended": World(suspend=True), "Succeeded": World(), "Failed": World()}
    for phase, one in worlds.items():
        one.settle()
        if phase in FINISHED:
            for seed in (0, 1, 2, 3):
                one.set_phase(name(seed), phase)
                one.settle()
    stuck = worlds["Pending"] = World()
    stuck.refuses = {name(seed): (Sweeping.FORBIDDEN, False) for seed in range(4)}
    stuck.settle()
    about = {"name": "sums", "namespace": "team", "generation": 1}
    head = {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLSweep", "metadata": about}
    with tools_or_skip():
        found = judged({**head, "status": one.status} for one in worlds.values())
    assert [one.status["phase"] for one in worlds.values()] == list(worlds)
    assert [one[:2] for one in found] == [
        ("Current", "Progressing"),
        ("Current", "Suspended"),
        ("Current", "Healthy"),
        ("Failed", "Degraded"),
        ("Failed", "Degraded"),
    ]


@pytest.mark.parametrize("metric", ["best", "evalScore"])
@pytest.mark.parametrize("value", [[1], "x", 3, {"evals": [1], "keepBest": [2], "type": ["sft"], "eval": None}])
@pytest.mark.parametrize("path", ["spec.data", "spec.checkpoint", "spec.algorithm", "spec.data.evals"])
def test_a_trial_with_values_of_wrong_types_is_refused(path: str, value: Any, metric: str):
    sound = {"set": {"spec.trainer.seed": 1}, "name": "sound"}
    world = World(over=None, trials=[{"set": {path: value}, "name": "odd"}, sound], objective={"metric": metric})
    world.settle()
    assert world.phases == ["Refused", "Pending"], world.status
