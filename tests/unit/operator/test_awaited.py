"""A job that ends is deleted by its ttl only when its sweep, its schedule and its servers have what they need of it."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from lorarl_operator.control.cache import Cache
from lorarl_operator.decide.awaited import AWAITED_SECONDS
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Decision, DeleteJob
from lorarl_operator.decide.schedule import decide_schedule
from lorarl_operator.decide.sweep import decide_sweep
from lorarl_operator.kube.resources import LORARLJOBS, LORARLSCHEDULES, LORARLSWEEPS
from support.published import best, model
from unit.contract.publish_cases import PUBLISHES
from unit.operator.observed_world import SETTINGS, SPEC, START, observed, raw_job
from unit.operator.publishing_world import ENTRY
from unit.operator.schedule_world import World, hour, schedule_spec
from unit.operator.sweep_world import AXIS, sweep_spec
from unit.operator.sweep_world import World as Trials
from unit.operator.sweep_world import name as trial_name

ADAPTER = {"uri": "s3://team/adapters/a", "sha256": "a" * 64, "step": 9, "version": 10}
ENDED = START - timedelta(minutes=5)
LATER = START + timedelta(days=300)
"""However late the end is noted, nothing may be lost."""


def ended(phase: str, **status: Any) -> dict[str, Any]:
    return {"phase": phase, "completionTime": ENDED.isoformat().replace("+00:00", "Z"), "adapter": ADAPTER} | status


class Made:
    """A sweep or a schedule with one job, as the operator's cache has them."""

    def __init__(self, kind: str) -> None:
        self.is_sweep = kind == "LoRARLSweep"
        self.name = "sums" if self.is_sweep else "nightly"
        self.job_name = trial_name(0) if self.is_sweep else hour(1)
        about = {"namespace": "team", "name": self.name, "uid": "maker", "generation": 1}
        spec = sweep_spec() if self.is_sweep else schedule_spec(continueFrom="last")
        created = {"creationTimestamp": (START - timedelta(hours=3)).isoformat()}
        self.maker: dict[str, Any] = {"metadata": about | created, "spec": spec, "status": {}}
        self.owner = {"kind": kind, "name": self.name, "uid": "maker", "controller": True}
        self.cache, self.version = Cache(), 0

    def put(self, resource: Any, raw: dict[str, Any]) -> None:
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.cache.put(resource, copy.deepcopy(raw))

    def job(self, status: dict[str, Any], ttl: int | None = 0) -> None:
        about = {"name": self.job_name, "uid": "job", "ownerReferences": [self.owner]}
        self.put(LORARLJOBS, raw_job({} if ttl is None else {"ttlSecondsAfterFinished": ttl}, status, **about))

    def looks(self) -> None:
        """The sweeper or the scheduler writes what it sees."""
        resource = LORARLSWEEPS if self.is_sweep else LORARLSCHEDULES
        self.put(resource, self.maker)
        key = ("team", self.name)
        if self.is_sweep:
            sweep = self.cache.sweep(key)
            assert sweep is not None
            status = decide_sweep(sweep, self.cache.made_by(sweep), {}, START).status
        else:
            schedule = self.cache.schedule(key)
            assert schedule is not None
            status = decide_schedule(schedule, self.cache.made_by(schedule), None, START).status
        self.maker["status"] = status or self.maker["status"]
        self.put(resource, self.maker)

    def decides(self) -> Decision:
        observed = self.cache.observe(("team", self.job_name))
        assert observed is not None
        return decide(observed, LATER, SETTINGS)


def deletes(decision: Decision) -> bool:
    return DeleteJob() in decision.actions


@pytest.mark.parametrize("kind", ["LoRARLSweep", "LoRARLSchedule"])
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
@pytest.mark.parametrize("was_seen", [False, True])
def test_the_end_of_a_job_is_noted_before_it_is_deleted(kind: str, phase: str, was_seen: bool) -> None:
    made = Made(kind)
    if was_seen:
        made.job({"phase": "Running"})
    made.looks()
    made.job(ended(phase))
    if was_seen or phase == "Succeeded" or made.is_sweep:
        waits = made.decides()
        assert not deletes(waits) and waits.recheck_seconds == AWAITED_SECONDS
    made.looks()
    assert deletes(made.decides())
    if made.is_sweep:
        assert made.maker["status"]["trials"][0]["phase"] == phase
    elif phase == "Succeeded":
        assert made.maker["status"]["lastAdapter"]["uri"] == ADAPTER["uri"]


@pytest.mark.parametrize("kind", ["LoRARLSweep", "LoRARLSchedule"])
def test_a_maker_that_is_gone_holds_no_job(kind: str) -> None:
    made = Made(kind)
    made.job(ended("Succeeded"))
    assert deletes(made.decides())
    made.looks()
    made.maker["metadata"]["uid"] = "another"
    made.cache.remove(LORARLSWEEPS if made.is_sweep else LORARLSCHEDULES, ("team", made.name), made.name, "maker")
    made.put(LORARLSWEEPS if made.is_sweep else LORARLSCHEDULES, made.maker | {"status": {}})
    made.job(ended("Succeeded"))
    assert deletes(made.decides())


def entry(**parts: Any) -> dict[str, Any]:
    version = {"model": model(10), "step": 10, "metric": "eval_score", "value": 0.9}
    version |= {"uri": best(10, 0.9)["uri"], "sha256": best(10, 0.9)["sha256"]}
    serves = {"state": "Serving", "reason": "Serving", "version": version, "serving": model(10)}
    about = {"name": "sums", "message": "", "since": "2026-03-01T11:00:00Z", "versions": [version]}
    return about | serves | parts


def publishing() -> dict[str, Any]:
    """The parts of a spec whose best adapters are published."""
    spec = {path.removeprefix("spec."): value for path, value in PUBLISHES.items()}
    checkpoint = {"uri": "s3://team/adapters", "keepBest": {}, "keepAll": True}
    return {"publish": [ENTRY], "data": SPEC["data"] | {"eval": spec["data.eval"]}, "checkpoint": checkpoint}


@pytest.mark.parametrize(
    ("published", "is_done"),
    [
        ([], False),  # The publisher has not looked yet.
        ([entry(state="Waiting", reason="Loading", serving=None, versions=[])], False),
        ([entry(state="Failed", reason="Forbidden", serving=None, versions=[])], False),
        ([entry(version=None, versions=[], serving=None, state="HeldBack", reason="BelowGate")], False),  # Before 0.9.
        ([entry()], True),
        ([entry(state="Waiting", reason="Superseded", serving=None)], True),
        ([entry(), entry(name="old", state="Withdrawing", reason="Withdrawing")], False),
    ],
)
def test_what_a_job_publishes_serves_before_it_is_deleted(published: list[dict[str, Any]], is_done: bool) -> None:
    status = ended("Succeeded", best=best(10, 0.9), published=published)
    job = raw_job(publishing() | {"ttlSecondsAfterFinished": 0}, status)
    assert deletes(decide(observed(job), LATER, SETTINGS)) is is_done


@pytest.mark.parametrize("state", ["Waiting", "Failed"])
def test_a_job_says_why_it_outlives_its_ttl_and_what_lets_it_go(state: str) -> None:
    stuck = entry(state=state, reason="Loading", serving=None, versions=[])
    spec = publishing() | {"ttlSecondsAfterFinished": 0}
    job = raw_job(spec, ended("Succeeded", best=best(10, 0.9), published=[stuck]))
    decision = decide(observed(job), LATER, SETTINGS)
    [told] = decision.events
    assert decision.recheck_seconds and decision.recheck_seconds > AWAITED_SECONDS, "it is not said every moment"
    assert told.reason == "Kept" and "published or withdrawn: sums." in told.message
    assert "remove the entry from spec.publish, which withdraws" in told.message
    fresh = stuck | {"since": LATER.isoformat()}
    job = raw_job(spec, ended("Succeeded", best=best(10, 0.9), published=[fresh]))
    assert not decide(observed(job), LATER, SETTINGS).events, "it may serve in a moment"
    gone = raw_job({"ttlSecondsAfterFinished": 0}, ended("Succeeded", best=best(10, 0.9), published=[]))
    assert deletes(decide(observed(gone), LATER, SETTINGS)), "as its message says"


def test_a_version_that_is_held_back_holds_no_job() -> None:
    for value, published in ((0.1, entry(version=None, versions=[], serving=None, state="HeldBack")), (0.8, entry())):
        status = ended("Succeeded", best=best(20, value), published=[published])
        job = raw_job(publishing() | {"ttlSecondsAfterFinished": 0}, status)
        assert deletes(decide(observed(job), LATER, SETTINGS))


def test_the_history_keeps_a_job_until_its_best_adapter_serves() -> None:
    world = World(successfulJobsHistoryLimit=0, template={"spec": SPEC | publishing()})
    world.passes(hours=1)
    world.ends(hour(1), best=best(10, 0.9))
    world.settle()
    assert hour(1) in world.jobs
    world.jobs[hour(1)]["status"]["published"] = [entry()]
    world.settle()
    assert not world.jobs


def test_a_sweep_is_kept_until_the_adapters_of_its_trials_serve() -> None:
    template = {"spec": SPEC | publishing()}
    world = Trials(ttlSecondsAfterFinished=0, over=[AXIS | {"values": [0]}], template=template)
    world.settle()
    world.reports(trial_name(0), 10, 0.9)
    world.set_phase(trial_name(0), "Succeeded", best=best(10, 0.9))
    world.settle()
    assert not world.deleted and world.look().recheck_seconds == AWAITED_SECONDS
    world.jobs[trial_name(0)]["status"]["published"] = [entry()]
    world.step()
    assert world.deleted
