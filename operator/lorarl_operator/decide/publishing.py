"""Decide which versions of a job's adapter its servers have: from the job and what is there, and nothing else.

    nothing -> a version is accepted, and loads -> it serves -> a better one is accepted, and loads while that serves

The status names the accepted version before anything is created for it. What served before stays until its successor
answers, or forever if that never does. So an operator may be killed at any moment, and its successor continues.

Nothing here can fail the training: faults are states, and everything is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lorarl_api.v1alpha1 import MAX_PUBLISHED, SCHEDULE_KIND, TARGETS, PublishedStatus, PublishSpec, TargetName
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.published_entry import Found, State, decide_entry, withdraw
from lorarl_operator.decide.served import Asked, Fault, Item, Move, Serve, Step
from lorarl_operator.decide.status import PUBLISHED, timestamp
from lorarl_operator.decide.versions import stored_entries

_RECHECK_SECONDS = {"Waiting": 3.0, "Withdrawing": 3.0, "Failed": 20.0, "HeldBack": 60.0, "Serving": 60.0}
_WARNINGS = frozenset({"Failed", "HeldBack"})
_LONGEST_MESSAGE = 2048


@dataclass(frozen=True, slots=True)
class PublishDecision:
    """What to do about what a job publishes: first the status, then its Events, then the steps.

    `status` is the publisher's whole part of the job's status; None if it is stored already.
    """

    status: dict[str, Any] | None
    events: tuple[Event, ...]
    steps: tuple[Step, ...]
    recheck_seconds: float


def decide_publishing(
    job: Job,
    entries: Sequence[PublishSpec],
    asked: Asked,
    faults: Mapping[str, Fault],
    now: datetime,
) -> PublishDecision:
    """Decide about all entries of a job.

    Args:
        job: With its status.
        entries: `spec.publish`.
        asked: What the servers have of this job, for all that `targets_of` names.
        faults: By entry, why its last step failed. It counts while there is a step to do.
        now: By the API server's clock.
    """
    status = job.read_status()
    stored = stored_entries(status)
    servers = {target: one for target, one in asked.items() if not isinstance(one, Fault)}
    items = [item for one in servers.values() for item in one.items]
    found: dict[str, _Entry] = {}
    # What an earlier job of its schedule has served for an entry that is gone from the template is withdrawn.
    of_schedule = job.maker is not None and job.maker.kind == SCHEDULE_KIND
    earlier = [one.entry for one in items] if of_schedule else []
    names = list(dict.fromkeys([*(one.name for one in entries), *stored, *earlier]))
    # What is being withdrawn must not be forgotten. Entries for which the status has no room begin after that.
    listed = set(list(dict.fromkeys([*stored, *names]))[:MAX_PUBLISHED])
    for name in (one for one in names if one in listed):
        entry = next((one for one in entries if one.name == name), None)
        found[name] = _entry(entry, status, stored.get(name), asked, [one for one in items if one.entry == name])
    moves = [move for one in found.values() if one.found for move in one.found.moves]
    steps = [step for target, one in servers.items() for step in one.steps(_to(target, moves))]
    failed = {name: fault for step in steps for name in step.entries if (fault := faults.get(name))}
    decided = {name: _failing(one.found, failed.get(name)) for name, one in found.items()}
    made = {
        name: _written(name, one, found[name].targets, stored.get(name), now) for name, one in decided.items() if one
    }
    part = _part(job, made, status, now)
    return PublishDecision(
        status=part if part != _stored_part(status) else None,
        events=tuple(_news(stored, decided, made)),
        steps=tuple(steps),
        recheck_seconds=min((_RECHECK_SECONDS[one.state] for one in made.values()), default=60.0),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """What was found of an entry, None if it is withdrawn; and the targets that may have something of it."""

    found: Found | None
    targets: tuple[TargetName, ...]


def _entry(
    entry: PublishSpec | None,
    status: Mapping[str, Any],
    stored: PublishedStatus | None,
    asked: Asked,
    items: Sequence[Item],
) -> _Entry:
    before = _targets(stored) if stored else ()
    unknown = {one: asked_of for one in before if isinstance(asked_of := asked[one], Fault)}
    gone = [one for one, fault in unknown.items() if fault.reason is Publishing.NOT_INSTALLED]
    left = [one for one in TARGETS if one in {*unknown, *(item.target for item in items)} and one not in gone]
    if entry is None:
        blind = next((unknown[one] for one in left if one in unknown), None)
        return _Entry(_as_before(stored, blind) if blind else withdraw(items), tuple(left))
    targets = tuple(one for one in TARGETS if one == entry.target or one in left)
    servers = asked[entry.target]
    if isinstance(servers, Fault):
        return _Entry(_as_before(stored, servers), targets)
    return _Entry(decide_entry(entry, status, stored, servers, items), targets)


def _to(target: TargetName, moves: Iterable[Move]) -> Iterator[Move]:
    """The moves that are for the servers of a target."""
    for one in moves:
        if target == (one.entry.target if isinstance(one, Serve) else one.item.target):
            yield one


def _failing(found: Found | None, fault: Fault | None) -> Found | None:
    return replace(found, state="Failed", reason=fault.reason, message=fault.message) if found and fault else found


def targets_of(jobs: Iterable[Job]) -> list[TargetName]:
    """The targets whose servers may have something of these jobs, or are to have it."""
    named = set()
    for job in jobs:
        named |= {one for entry in stored_entries(job.read_status()).values() for one in _targets(entry)}
        named |= {one for entry in job.read_spec().get("publish") or () for one in entry}
    return [one for one in TARGETS if one in named]


def _targets(stored: PublishedStatus) -> Sequence[TargetName]:
    return stored.targets or ("aibrix",)


def inputs(job: Job) -> dict[str, Any]:
    """What a decision follows from, as far as the job says it. Most reports of a training change nothing of it."""
    status = job.read_status()
    spec = {"publish": job.read_spec().get("publish"), "generation": job.generation, "uid": job.uid}
    return {**spec, "phase": status.get("phase"), "best": status.get("best"), **_stored_part(status)}


def _as_before(stored: PublishedStatus | None, fault: Fault) -> Found:
    """An entry whose objects could not be listed, or are another job's by now: what was known of it stays."""
    gone = fault.reason is Publishing.SUPERSEDED
    state: State = "Waiting" if gone else "Failed"
    if stored is None:
        return Found(state, fault.reason, fault.message)
    serving = None if gone else stored.serving
    return Found(state, fault.reason, fault.message, stored.version, serving, tuple(stored.versions))


def superseded(job: Job, made: Iterable[Job]) -> Fault | None:
    """Why a job of a schedule publishes no more: a later one does. That stays so, whatever becomes of the later one.

    `made`: The jobs of its schedule.
    """
    told = [one for one in stored_entries(job.read_status()).values() if one.reason == Publishing.SUPERSEDED]
    if told:
        return Fault(Publishing.SUPERSEDED, told[0].message)
    publish = [one for one in made if one.created_at and b'"publish"' in one.spec]
    newest = max(publish, key=lambda one: (one.created_at, one.name), default=job)
    if newest.name == job.name:
        return None
    return Fault(Publishing.SUPERSEDED, f"Job {newest.name} of the same schedule publishes in place of this one.")


def _written(
    name: str, found: Found, targets: Sequence[TargetName], stored: PublishedStatus | None, now: datetime
) -> PublishedStatus:
    same = stored is not None and _key(stored) == (found.state, found.reason, found.version)
    return PublishedStatus(
        name=name,
        targets=list(targets),
        state=found.state,
        reason=str(found.reason),
        message=found.message[:_LONGEST_MESSAGE],
        since=stored.since if stored and same else now.replace(microsecond=0),
        version=found.version,
        serving=found.serving,
        versions=list(found.versions),
    )


def _key(entry: PublishedStatus) -> tuple[Any, ...]:
    """What `since` is about."""
    return entry.state, entry.reason, entry.version


def _news(
    stored: Mapping[str, PublishedStatus], found: Mapping[str, Found | None], made: Mapping[str, PublishedStatus]
) -> Iterator[Event]:
    """An Event for each entry that changed. Counts of pods alone are no news."""
    for name, one in found.items():
        before, after = stored.get(name), made.get(name)
        if one is None or after is None:
            yield Event("Normal", Publishing.WITHDRAWN, f"publish {name}: nothing of it is served any more.")
            continue
        news = before is None or _key(before) != _key(after)
        if news or (before and after.state == "HeldBack" and before.message != after.message):
            text = f"publish {name}: {after.message}"
            yield Event("Warning" if after.state in _WARNINGS else "Normal", one.reason, text)


def _part(job: Job, made: Mapping[str, PublishedStatus], status: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The publisher's part of the status: the entries, and the condition Published."""
    if not made:
        return {}
    first = next((one for one in made.values() if one.state != "Serving"), next(iter(made.values())))
    holds = str(first.state == "Serving")
    old = _condition(status)
    same = old.get("status") == holds
    condition = {
        "type": PUBLISHED,
        "status": holds,
        "reason": first.reason,
        "message": f"{first.name}: {first.message}",
        "lastTransitionTime": (same and old.get("lastTransitionTime")) or timestamp(now),
        "observedGeneration": job.generation,
    }
    entries = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in made.values()]
    return {"published": entries, "conditions": [condition]}


def _stored_part(status: Mapping[str, Any]) -> dict[str, Any]:
    condition = _condition(status)
    part = {"published": status.get("published"), "conditions": [condition] if condition else None}
    return {key: value for key, value in part.items() if value}


def _condition(status: Mapping[str, Any]) -> dict[str, Any]:
    return next((dict(one) for one in status.get("conditions") or () if one.get("type") == PUBLISHED), {})
