"""Schedules: one job for each time whatever happens, and a reason for each time without one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lorarl_api.schedules.manifest import time_of
from lorarl_operator.decide.schedule_reasons import Scheduling
from support.cluster.tools import tools_or_skip
from support.gitops import judged
from unit.operator.observed_world import SPEC
from unit.operator.schedule_world import World, hour

DATA = SPEC["data"] | {"eval": {"uri": "s3://team/eval.jsonl", "promptField": "q", "answerField": "a"}}
EVALUATED = SPEC | {"checkpoint": SPEC["checkpoint"] | {"keepBest": {}}, "data": DATA}
"""Jobs that choose a best checkpoint."""


def test_a_job_starts_at_each_time_with_its_labels_and_its_owner() -> None:
    world = World(timeZone="Europe/Berlin", template={"metadata": {"labels": {"team": "a"}}, "spec": SPEC})
    world.labels = {"kueue.x-k8s.io/queue-name": "research", "any": "b"}
    world.settle()
    assert not world.jobs and world.status["phase"] == "Scheduled"
    assert world.status["nextScheduleTime"] == "2026-03-01T13:00:00Z"
    assert world.look().recheck_seconds == 600.0, "the clock may be set meanwhile"
    world.passes(minutes=59)
    assert not world.jobs and world.look().recheck_seconds == 60.0
    world.passes(minutes=1)
    (made,) = world.jobs.values()
    about = made["metadata"]
    assert about["name"] == hour(1) and made["spec"] == SPEC
    assert about["labels"] == {
        "kueue.x-k8s.io/queue-name": "research",
        "team": "a",
        "lorarl.io/schedule": "nightly",
    }
    assert about["annotations"] == {"lorarl.io/scheduled-at": "2026-03-01T14:00:00+01:00"}
    assert about["ownerReferences"][0]["uid"] == "schedule-uid" and about["ownerReferences"][0]["controller"]
    assert world.status["active"] == [{"name": hour(1), "uid": f"uid-{hour(1)}-0"}]
    assert world.status["lastScheduleTime"] == "2026-03-01T13:00:00Z" and world.status["lastPhase"] == "Pending"
    assert world.status["nextScheduleTime"] == "2026-03-01T14:00:00Z" and world.status["phase"] == "Running"
    world.ends(hour(1))
    world.passes(minutes=5)
    assert world.status["lastSuccessfulTime"] == "2026-03-01T13:00:00Z" and "active" not in world.status
    assert world.status["lastPhase"] == "Succeeded" and world.status["phase"] == "Scheduled"
    assert world.reasons() == ["JobMade", "JobSucceeded"] and world.made == {hour(1): 1}


@pytest.mark.parametrize(
    ("choice", "second", "adapter"), [("none", None, "last"), ("last", "last", "last"), ("best", "best", "best")]
)
def test_each_job_continues_from_the_newest_that_succeeded(choice: str, second: str | None, adapter: str) -> None:
    world = World(continueFrom=choice, template={"spec": EVALUATED}, failedJobsHistoryLimit=0)
    world.passes(hours=1)
    assert world.jobs[hour(1)]["spec"] == EVALUATED, "the first one starts with a new adapter"
    world.ends(hour(1))
    world.passes(hours=1)
    expected = {"initFrom": f"s3://{hour(1)}/{second}"} if second else {}
    assert world.jobs[hour(2)]["spec"]["adapter"] == SPEC["adapter"] | expected
    assert world.status["lastAdapter"]["uri"] == f"s3://{hour(1)}/{adapter}"
    world.ends(hour(2), "Failed")
    world.settle()
    assert hour(2) not in world.jobs and world.status["lastPhase"] == "Failed"
    del world.jobs[hour(1)]
    world.passes(hours=1)
    assert world.jobs[hour(3)]["spec"]["adapter"] == SPEC["adapter"] | expected, "also if that job is gone"


def test_the_adapter_is_the_one_that_continue_from_names_now() -> None:
    world = World(continueFrom="last", template={"spec": EVALUATED})
    world.passes(hours=1)
    world.ends(hour(1))
    world.settle()
    world.spec["continueFrom"] = "best"
    world.settle()
    assert world.status["lastAdapter"] == {
        "job": hour(1),
        "time": "2026-03-01T13:00:00Z",
        "uri": f"s3://{hour(1)}/best",
        "sha256": "b" * 64,
    }


def test_forbid_leaves_a_time_out_and_makes_up_for_the_newest() -> None:
    world = World(concurrencyPolicy="Forbid")
    world.passes(hours=1)
    for number in (2, 3):
        world.passes(hours=1)
        skipped = world.status["skipped"]
        assert skipped["reason"] == "Skipped" and skipped["time"] == f"2026-03-01T{12 + number}:00:00Z"
    assert list(world.jobs) == [hour(1)] and skipped["count"] == 1 and hour(1) in skipped["message"]
    assert world.reasons() == ["JobMade", "Skipped", "Skipped"]
    assert len({message for reason, message in world.events if reason == "Skipped"}) == 1, "one Event, with a count"
    world.ends(hour(1))
    world.passes(minutes=10)
    assert set(world.jobs) == {hour(1), hour(3)}, "as a CronJob does"
    assert "skipped" not in world.status
    late = World(concurrencyPolicy="Forbid", startingDeadlineSeconds=300)
    late.passes(hours=1)
    late.passes(hours=1)
    late.now += timedelta(minutes=10)
    late.ends(hour(1))
    late.settle()
    assert list(late.jobs) == [hour(1)], "it is too late by then"
    late.passes(minutes=50)
    assert set(late.jobs) == {hour(1), hour(3)}


def test_replace_deletes_the_unfinished_job_and_allow_runs_both() -> None:
    world = World(concurrencyPolicy="Replace")
    world.passes(hours=1)
    world.passes(hours=1)
    assert list(world.jobs) == [hour(2)] and world.reasons().count("Replaced") == 1
    both = World()
    both.passes(hours=1)
    both.passes(hours=1)
    assert both.unfinished == [hour(1), hour(2)] and len(both.status["active"]) == 2


def test_a_job_that_is_being_deleted_is_unfinished_but_not_deleted_twice() -> None:
    world = World(concurrencyPolicy="Replace")
    world.passes(hours=1)
    world.jobs[hour(1)]["metadata"]["deletionTimestamp"] = "2026-03-01T13:30:00Z"
    world.passes(hours=1)
    assert world.unfinished == [hour(1), hour(2)] and "Replaced" not in world.reasons()
    forbids = World(concurrencyPolicy="Forbid")
    forbids.passes(hours=1)
    forbids.jobs[hour(1)]["metadata"]["deletionTimestamp"] = "2026-03-01T13:30:00Z"
    forbids.passes(hours=1)
    assert list(forbids.jobs) == [hour(1)]


@pytest.mark.parametrize(("hours", "count"), [(3.5, "2"), (2, "1"), (400, "More than 100")])
def test_after_a_pause_only_the_newest_starts_and_one_event_says_so(hours: float, count: str) -> None:
    world = World()
    world.settle()
    world.passes(hours=hours)
    assert list(world.jobs) == [hour(int(hours))]
    (missed,) = (message for reason, message in world.events if reason == "Missed")
    assert missed.startswith(f"{count} time") and missed.endswith("Only the newest time gets a job.")
    late = World(startingDeadlineSeconds=600)
    late.settle()
    late.passes(hours=int(hours), minutes=11)
    assert not late.jobs and late.reasons() == ["Missed"] and "startingDeadlineSeconds" in late.events[0][1]
    late.passes(minutes=10)
    assert late.reasons() == ["Missed"]
    late.passes(minutes=39)
    assert list(late.jobs) == [hour(int(hours) + 1)] and late.reasons() == ["Missed", "JobMade"]


def test_a_suspended_schedule_starts_nothing_and_makes_up_for_the_newest() -> None:
    world = World(suspend=True)
    world.passes(hours=5)
    assert not world.jobs and world.status["phase"] == "Suspended" and "nextScheduleTime" not in world.status
    assert world.look().recheck_seconds is None and world.reasons() == ["Suspended"]
    world.spec["suspend"] = False
    world.settle()
    assert list(world.jobs) == [hour(5)] and world.status["skipped"]["count"] == 4


def test_history_keeps_the_newest_and_what_an_unfinished_job_needs() -> None:
    world = World(successfulJobsHistoryLimit=1, failedJobsHistoryLimit=2, continueFrom="last")
    for number, phase in enumerate(["Succeeded", "Failed", "Failed", "Failed", "Succeeded"], start=1):
        world.passes(hours=1)
        world.ends(hour(number), phase)
        world.settle()
    assert set(world.jobs) == {hour(3), hour(4), hour(5)}
    world.passes(hours=1)
    world.passes(hours=1)
    world.ends(hour(7))
    world.settle()
    assert set(world.jobs) == {hour(3), hour(4), hour(5), hour(6), hour(7)}, "the sixth has the adapter of the fifth"
    world.ends(hour(6), "Failed")
    world.settle()
    assert set(world.jobs) == {hour(4), hour(6), hour(7)}
    none = World(successfulJobsHistoryLimit=0)
    none.passes(hours=1)
    none.ends(hour(1))
    none.settle()
    assert not none.jobs and none.status["lastPhase"] == "Succeeded" and none.status["lastAdapter"]["job"] == hour(1)
    none.passes(minutes=30)
    assert none.made == {hour(1): 1}, "a time whose job is gone has had its job"


@pytest.mark.parametrize("reason", [Scheduling.REFUSED, Scheduling.FORBIDDEN])
def test_a_refused_job_is_tried_again_and_said_once(reason: Scheduling) -> None:
    world = World()
    world.refuses = reason
    world.passes(hours=1)
    assert world.condition("Stalled")["reason"] == reason and world.look().recheck_seconds == 60.0
    for _ in range(5):
        world.passes(minutes=1)
    assert world.reasons() == [reason]
    world.refuses = None
    world.passes(minutes=1)
    assert list(world.jobs) == [hour(1)] and not world.condition("Stalled")


def test_a_job_of_another_owner_is_never_taken_over() -> None:
    world = World(continueFrom="last")
    world.jobs[hour(1)] = {"metadata": {"namespace": "team", "name": hour(1), "uid": "x", "resourceVersion": "1"}}
    world.passes(hours=1)
    assert world.condition("Stalled")["reason"] == "NameTaken" and "lastScheduleTime" not in world.status
    del world.jobs[hour(1)]
    world.passes(minutes=1)
    assert world.status["lastJob"] == hour(1)


def test_a_job_that_was_started_by_hand_counts_but_is_no_time() -> None:
    world = World(concurrencyPolicy="Forbid", continueFrom="last")
    owner = {"kind": "LoRARLSchedule", "name": "nightly", "uid": "schedule-uid", "controller": True}
    about = {"namespace": "team", "name": "nightly-r123", "uid": "x", "resourceVersion": "1"}
    world.jobs["nightly-r123"] = {"metadata": about | {"ownerReferences": [owner]}, "spec": SPEC}
    world.passes(hours=1)
    assert list(world.jobs) == ["nightly-r123"] and world.status["skipped"]["reason"] == "Skipped"
    world.ends("nightly-r123")
    world.settle()
    assert world.jobs[hour(1)]["spec"]["adapter"]["initFrom"] == "s3://nightly-r123/last"
    assert time_of("nightly", "nightly-r123") is None and time_of("nightly", "other-12345678") is None


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"schedule": "0 0 31 2 *"}, "spec.schedule"),
        ({"timeZone": "Europe/Nowhere"}, "spec.timeZone"),
        ({"template": {"spec": SPEC | {"adapter": {"targetModules": []}}}}, "spec.template.spec.adapter.targetModules"),
    ],
)
def test_a_spec_that_cannot_be_used_is_said_and_keeps_what_is_known(parts: dict[str, Any], said: str) -> None:
    world = World()
    world.passes(hours=1)
    before = world.spec
    world.spec = world.spec | parts
    world.passes(hours=3)
    assert world.status["phase"] == "Failed" and world.status["lastJob"] == hour(1)
    assert said in world.condition("Stalled")["message"] and world.reasons()[-1] == "Invalid"
    assert list(world.jobs) == [hour(1)]
    world.spec = before
    world.settle()
    assert set(world.jobs) == {hour(1), hour(4)} and not world.condition("Stalled")


def test_a_clock_that_goes_back_starts_nothing_twice() -> None:
    world = World()
    world.passes(hours=1)
    world.now -= timedelta(minutes=30)
    world.settle()
    assert world.status["nextScheduleTime"] == "2026-03-01T14:00:00Z"
    world.passes(minutes=35)
    assert world.made == {hour(1): 1}
    world.passes(hours=1)
    assert world.made == {hour(1): 1, hour(2): 1}


def test_each_state_as_kstatus_and_argo_cd_see_it() -> None:
    def stored(world: World) -> dict[str, Any]:
        about = {"name": "nightly", "namespace": "team", "generation": 1}
        return {"apiVersion": "lorarl.io/v1alpha1", "kind": "LoRARLSchedule", "metadata": about, "status": world.status}

    waits, runs, suspended, invalid, refused, unseen = World(), World(), World(suspend=True), World(), World(), World()
    invalid.spec["schedule"] = "0 0 31 2 *"
    refused.refuses = Scheduling.FORBIDDEN
    for world in (waits, suspended, invalid):
        world.settle()
    for world in (runs, refused):
        world.passes(hours=1)
    with tools_or_skip():
        found = judged(map(stored, (unseen, waits, runs, suspended, invalid, refused)))
    assert [(kstatus, argo) for kstatus, argo, _ in found] == [
        ("InProgress", "Progressing"),
        ("Current", "Healthy"),
        ("Current", "Healthy"),
        ("Current", "Suspended"),
        ("Failed", "Degraded"),
        ("Failed", "Degraded"),
    ]


def test_the_job_from_which_the_next_one_starts_is_kept() -> None:
    """The newest job has succeeded before its first evaluation, so it has no best checkpoint."""
    world = World(continueFrom="best", successfulJobsHistoryLimit=1, template={"spec": EVALUATED})
    world.passes(hours=1)
    world.ends(hour(1))
    world.passes(hours=1)
    world.ends(hour(2), best=None)
    world.settle()
    assert world.status["lastAdapter"]["job"] == hour(1) and hour(1) in world.jobs
    world.passes(hours=1)
    world.ends(hour(3))
    world.settle()
    assert sorted(world.jobs) == [hour(3)]
