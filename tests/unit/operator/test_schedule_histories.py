"""Random histories of a schedule: clocks are set, operators die anywhere, jobs end, vanish and are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.schedules import manifest
from lorarl_api.schedules.cron import times_of
from lorarl_api.schedules.manifest import time_of
from lorarl_operator.decide.schedule_reasons import Scheduling
from unit.operator.observed_world import START
from unit.operator.schedule_world import World


@pytest.fixture(autouse=True, scope="module")
def rules_are_kept() -> Iterator[None]:
    """The rules of a schedule and its job take 60 ms, and each history has another spec."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "broken_rules", lambda _, **__: ())
        patch.setattr(manifest, "faults", lambda _, **__: [])
        yield


SETTINGS = st.fixed_dictionaries(
    {
        "schedule": st.sampled_from(
            ["0 * * * *", "*/20 * * * *", "30 2 * * *", "15 1-4 * * *", "@hourly", "5 */6 * * *"]
        ),
        "timeZone": st.sampled_from(["Etc/UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
        "concurrencyPolicy": st.sampled_from(["Allow", "Forbid", "Replace"]),
        "startingDeadlineSeconds": st.sampled_from([None, 1, 60, 3000, 100_000]),
        "successfulJobsHistoryLimit": st.integers(0, 3),
        "failedJobsHistoryLimit": st.integers(0, 2),
        "continueFrom": st.sampled_from(["none", "last"]),
    }
)
STARTS = st.sampled_from([START, datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)])
STEPS = st.one_of(
    st.tuples(st.just("look"), st.none()),
    st.tuples(st.just("killed"), st.integers(0, 3)),
    st.tuples(st.just("minutes"), st.integers(1, 200)),
    st.tuples(st.just("hours"), st.integers(3, 60)),
    st.tuples(st.just("back"), st.integers(1, 100)),
    st.tuples(st.just("ends"), st.booleans()),
    st.tuples(st.just("gone"), st.none()),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("refuses"), st.booleans()),
)


def act(world: World, what: str, which: Any) -> None:
    match what:
        case "look" | "killed":
            world.step(killed_after=which)
        case "minutes" | "hours" | "back":
            ways = {"minutes": timedelta(minutes=1), "hours": timedelta(hours=1), "back": timedelta(minutes=-1)}
            world.now += ways[what] * which
        case "suspend":
            world.spec["suspend"] = which
        case "refuses":
            world.refuses = Scheduling.FORBIDDEN if which else None
        case _:
            act_on_job(world, what, which)


def act_on_job(world: World, what: str, which: Any) -> None:
    if what == "ends" and world.unfinished:
        world.ends(world.unfinished[0], "Succeeded" if which else "Failed")
    if what == "gone":
        # One that is gone before a status named it was never known to exist: CronJobs make it again too.
        known = {one["name"] for one in world.status.get("active", ())}
        for name in sorted(known & set(world.jobs))[:1]:
            del world.jobs[name]


@settings(max_examples=1000)
@given(SETTINGS, STARTS, st.lists(STEPS, max_size=30))
def test_any_history_gives_each_time_one_job_or_a_reason(
    parts: dict[str, Any], start: datetime, history: list[tuple[str, Any]]
) -> None:
    world = World(start, **parts)
    times = times_of(parts["schedule"], parts["timeZone"])
    for what, which in history:
        before, started = len(world.unfinished), sum(world.made.values())
        act(world, what, which)
        for name, count in world.made.items():
            at = time_of("nightly", name)
            assert count == 1, f"{name} was made twice"
            assert at is not None and times.after(at - timedelta(seconds=1)) == at, "it is a time of the schedule"
        if sum(world.made.values()) > started and what in ("look", "killed"):
            assert parts["concurrencyPolicy"] != "Forbid" or before == 0
            assert parts["concurrencyPolicy"] != "Replace" or len(world.unfinished) == 1
    world.refuses, world.not_made, world.spec["suspend"] = None, None, False
    world.settle()
    decision = world.look()
    assert decision.status is None and not decision.actions and decision.recheck_seconds, "it is at rest"
    assert_each_time_has_a_reason(world)


def assert_each_time_has_a_reason(world: World) -> None:
    """Nothing is due, or the status says why it has no job."""
    times = times_of(world.spec["schedule"], world.spec.get("timeZone", "Etc/UTC"))
    last = max((time for name in world.made if (time := time_of("nightly", name))), default=world.created)
    skipped = world.status.get("skipped")
    told = max(last, datetime.fromisoformat(skipped["time"])) if skipped else last
    assert times.due(told, world.now) is None, (told, world.now, world.status)
    if world.made:
        assert world.status["lastScheduleTime"] == last.strftime("%Y-%m-%dT%H:%M:%SZ")
    upcoming = datetime.fromisoformat(world.status["nextScheduleTime"])
    assert upcoming > world.now and upcoming > last
