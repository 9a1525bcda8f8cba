"""Early stopping of a sweep's trials: which are stopped for good, and which wait at a rung for others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from lorarl_api.sweeps.halving import Climber, HalvingRule, HalvingVerdict, Mark, moves, standings
from lorarl_api.sweeps.objective import Goal
from lorarl_api.sweeps.stopping import MedianRule, stopped_by_median
from lorarl_api.v1alpha1 import HalvingStopping, LoRARLSweepSpec, MedianStopping, SweepStopping
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.status import FAILED, FINISHED, RUNNING, SUCCEEDED, SUSPENDED
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.decide.sweep_trials import (
    DELETED,
    ENDED,
    REFUSED,
    STOPPED,
    STOPPING,
    WAITING,
    at_rest,
    curve_of,
    is_suspended,
    said,
    with_point,
)

type Entries = dict[str, dict[str, Any]]
_NONE: frozenset[str] = frozenset()


def with_stops(
    spec: LoRARLSweepSpec, entries: Entries, jobs: Mapping[str, Job], goal: Goal | None, can_begin: int
) -> tuple[Entries, Collection[str]]:
    """The entries with those that early stopping ends, and the names of those that are held at a rung.

    Without `spec.stopping` none is, and those that were continue. `can_begin`: trials that need a place to begin.
    """
    stopping = spec.stopping
    if stopping is None or goal is None:
        return {name: _without(one, "points", "stopped", "rungs") for name, one in entries.items()}, _NONE
    entries = {name: with_point(one) if name in jobs else one for name, one in entries.items()}
    if stopping.halving is not None:
        return _halved(spec, stopping, stopping.halving, entries, jobs, goal, can_begin)
    assert stopping.median is not None, "a rule of the sweep"
    return _with_median(stopping, stopping.median, entries, jobs, goal), _NONE


def takes_place(entry: Mapping[str, Any], job: Job | None) -> bool:
    """Whether a trial is one of those that may be unfinished at a time."""
    if entry["phase"] in (WAITING, *ENDED):
        return False
    return not at_rest(entry, job)


def continues(name: str, entry: Mapping[str, Any], held: Collection[str]) -> bool:
    """Whether a trial that the sweep has suspended continues when there is a place."""
    return bool(entry.get("suspended")) and not entry.get("stopped") and name not in held


def _with_median(
    stopping: SweepStopping, median: MedianStopping, entries: Entries, jobs: Mapping[str, Job], goal: Goal
) -> Entries:
    rule = MedianRule(median.start_after, median.min_trials)
    made: Entries = {}
    for name, entry in entries.items():
        others = [curve_of(one) for other, one in entries.items() if other != name]
        stopped = entry.get("stopped")
        if name in stopping.exempt or entry["phase"] in FINISHED or "median" not in (stopped or {"median": 0}):
            stopped = None
        elif stopped is None and _can_be_stopped(entry, jobs.get(name)):
            verdict = stopped_by_median(curve_of(entry), others, goal, rule)
            stopped = asdict(verdict) if verdict else None
        made[name] = _judged(_without(entry, "rungs"), stopped, jobs.get(name))
    return made


def _halved(
    spec: LoRARLSweepSpec,
    stopping: SweepStopping,
    halving: HalvingStopping,
    entries: Entries,
    jobs: Mapping[str, Job],
    goal: Goal,
    can_begin: int,
) -> tuple[Entries, Collection[str]]:
    """See `with_stops`. A trial that may still continue is held as long as another one has its place, or needs it.

    A trial whose job is gone cannot continue, so the next best takes its place.
    """
    climbers = {
        name: _climber(one, jobs.get(name), exempt=name in stopping.exempt)
        for name, one in entries.items()
        if one["phase"] not in (FAILED, REFUSED, DELETED) and (one["phase"] == SUCCEEDED or not _is_gone(one, jobs))
    }
    found = standings(climbers, goal, HalvingRule(halving.start_after, halving.factor))
    made: Entries = {}
    undecided: dict[str, HalvingVerdict] = {}
    held: dict[str, HalvingVerdict] = {}
    for name, entry in entries.items():
        standing, stopped = found.get(name), None
        if _is_gone(entry, jobs):
            stopped = entry.get("stopped")
        elif (verdict := standing and standing.verdict) and name in jobs:
            suspended = bool(entry.get("suspended"))
            if verdict.final and (suspended or _can_be_stopped(entry, jobs[name])):
                stopped = asdict(verdict)
            elif suspended:
                held[name] = verdict
            elif _can_be_stopped(entry, jobs[name]):
                undecided[name] = verdict
        rungs = [asdict(mark) for mark in standing.marks] if standing else entry.get("rungs")
        made[name] = _judged(_without(entry, "rungs") | ({"rungs": rungs} if rungs else {}), stopped, jobs.get(name))
    if not spec.suspend:
        leaving, returning = moves(undecided, held, can_begin - _left_over(spec.parallelism, made, jobs, held))
        held = {name: one for name, one in held.items() if name not in returning}
        held |= {name: undecided[name] for name in leaving}
    for name, one in held.items():
        made[name] |= said(made[name]["phase"], Sweeping.AT_RUNG, f"It waits for other trials: {one}.")
    return made, held


def _climber(entry: Mapping[str, Any], job: Job | None, *, exempt: bool) -> Climber:
    total = job.read_status().get("totalSteps") if job is not None else None
    return Climber(
        curve=curve_of(entry),
        steps=total if isinstance(total, int) else None,
        marks=tuple(Mark(**one) for one in entry.get("rungs") or ()),
        ended=entry["phase"] == SUCCEEDED,
        exempt=exempt,
    )


def _is_gone(entry: Mapping[str, Any], jobs: Mapping[str, Job]) -> bool:
    """Whether a trial had a job, and has it no more."""
    return bool(entry.get("uid")) and (entry["name"] not in jobs or jobs[entry["name"]].uid != entry["uid"])


def _left_over(parallelism: int, entries: Entries, jobs: Mapping[str, Job], held: Collection[str]) -> int:
    """The free places, less those for trials that the sweep continues; negative if these need more than there are."""
    leaving = {name for name, one in entries.items() if one.get("stopped")} | set(held)
    staying = sum(takes_place(one, jobs.get(name)) for name, one in entries.items() if name not in leaving)
    promoted = sum(
        continues(name, one, held) and name in jobs and at_rest(one, jobs[name]) for name, one in entries.items()
    )
    return max(0, parallelism - staying) - promoted


def _judged(entry: dict[str, Any], stopped: dict[str, Any] | None, job: Job | None) -> dict[str, Any]:
    """The entry with what stops its trial; None for nothing."""
    made = _without(entry, "stopped") | ({"stopped": stopped} if stopped else {})
    if stopped and job is not None:
        made["phase"] = STOPPED if is_suspended(job) and entry["phase"] == SUSPENDED else STOPPING
    return made


def _can_be_stopped(entry: Mapping[str, Any], job: Job | None) -> bool:
    """Whether a trial trains, and has steps left."""
    if job is None or entry["phase"] != RUNNING:
        return False
    status = job.read_status()
    return not (isinstance(status.get("totalSteps"), int) and status.get("step", 0) >= status["totalSteps"])


def _without(entry: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in names}
