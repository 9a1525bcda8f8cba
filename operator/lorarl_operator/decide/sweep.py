"""Decide which trials of a sweep have a job, and which are suspended: from what is there, and nothing else.

A trial waits -> it has a job, which the status names by its uid -> the job ends, or early stopping suspends it

At most `parallelism` jobs are unfinished at a time, without those that the sweep itself has suspended. A job has the
name of its trial, so that no trial has two. The status says that a job is to be suspended before that is done, and
tells those jobs from others that a user has suspended. So an operator may be killed at any moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from lorarl_api.faults import Fault, ManifestError
from lorarl_api.load import faults
from lorarl_api.sweeps.manifest import goal_of, job_document, stops_none
from lorarl_api.sweeps.objective import Goal, best_of
from lorarl_api.sweeps.trials import Trial, spec_of
from lorarl_api.v1alpha1 import API_VERSION, SWEEP_KIND, LoRARLSweepSpec
from lorarl_operator.decide.awaited import AWAITED_SECONDS, is_published
from lorarl_operator.decide.decision import Event, Manifest
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.parse import time
from lorarl_operator.decide.status import FINISHED
from lorarl_operator.decide.sweep_models import (
    ANNOTATION_TRIAL,
    LABEL_SWEEP,
    DeleteSweep,
    Make,
    Suspend,
    Sweep,
    SweepAction,
    SweepDecision,
    Try,
    stored_trials,
)
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.decide.sweep_status import Summary, events_of, invalid_status, is_pressing, status_of
from lorarl_operator.decide.sweep_stops import Entries, continues, takes_place, with_stops
from lorarl_operator.decide.sweep_trials import (
    DELETED,
    REFUSED,
    WAITING,
    at_rest,
    is_suspended,
    said,
    trial_entry,
)
from lorarl_operator.decide.valid_spec import SCHEMA_SECONDS, if_newer

_LONGEST_ANNOTATION = 4096
_LOOKS = 4
"""Jobs that one decision checks, which takes about 30 ms each. What it found leads to the next decision."""


def decide_sweep(
    sweep: Sweep, jobs: Mapping[str, Job], not_made: Mapping[str, NotMade], now: datetime
) -> SweepDecision:
    """Decide about a sweep.

    Args:
        sweep: With its status.
        jobs: The jobs that it owns, by their names.
        not_made: By trial, why its job was refused when it was last tried.
        now: By the API server's clock.
    """
    if sweep.deleted_at is not None:
        return SweepDecision()
    stored = sweep.read_status()
    try:
        spec, trials = sweep.checked()
    except ManifestError as error:
        again = SCHEMA_SECONDS if if_newer(sweep.read_spec(), SWEEP_KIND) else None
        return _decided(sweep, stored, invalid_status(sweep, stored, str(error), now), (), again)
    before = stored_trials(stored)
    entries = {
        trial.name: trial_entry(
            trial, before.get(trial.name, {}), jobs.get(trial.name), not_made.get(trial.name), spec.objective
        )
        for trial in trials
    }
    goal = _goal(spec, trials)
    # None gives its place to one whose job is refused. That is tried in a free place; without one, it is asked about.
    can_begin = sum(_waits(one) and "reason" not in one for one in entries.values())
    entries, held = with_stops(spec, entries, jobs, goal, can_begin)
    actions = [
        *_suspensions(spec, entries, jobs, held),
        *_begun(sweep, spec, trials, entries, jobs, not_made, held, now),
    ]
    values = {name: one["value"] for name, one in entries.items() if "value" in one and one["phase"] != DELETED}
    best, *equal = best_of(values, goal) if goal is not None and values else [None]
    chosen = None if best is None else {**entries[best], **({"equal": equal} if equal else {})}
    summary = Summary(spec.suspend, list(entries.values()), chosen, any(isinstance(one, Make) for one in actions))
    status = status_of(sweep, stored, summary, now)
    left = _seconds_left(spec, status, now)
    if left == 0:
        if all(map(is_published, jobs.values())):
            actions = [DeleteSweep()]
        else:
            left = AWAITED_SECONDS
    waits = [(not_made[name].until - now).total_seconds() for name in not_made if _waits(entries.get(name))]
    recheck = min((max(1.0, one) for one in (*waits, left or 0.0) if one > 0), default=None)
    idle = None if stored.get("observedGeneration") == sweep.generation else stops_none(spec, trials)
    warnings = [Event("Warning", Sweeping.STOPS_NONE, str(idle))] if idle else []
    return _decided(sweep, stored, status, actions, recheck, warnings)


def _decided(
    sweep: Sweep,
    stored: dict[str, Any],
    status: dict[str, Any],
    actions: Sequence[SweepAction],
    recheck: float | None,
    warnings: Sequence[Event] = (),
) -> SweepDecision:
    changed = status != stored
    return SweepDecision(
        status=status if changed else None,
        pressing=changed and is_pressing(stored, status),
        events=(*events_of(stored, status), *warnings),
        actions=tuple(actions),
        recheck_seconds=recheck,
    )


def _suspensions(
    spec: LoRARLSweepSpec, entries: Entries, jobs: Mapping[str, Job], held: Collection[str]
) -> Iterator[Suspend]:
    """What to suspend. Sets `suspended` of the entries, which tells our suspensions from those of users."""
    for name, entry in entries.items():
        if (job := jobs.get(name)) is None or entry.get("uid") != job.uid:
            continue
        if entry["phase"] in FINISHED:
            entry.pop("suspended", None)
        elif spec.suspend or entry.get("stopped") or name in held:
            if not is_suspended(job):
                entry["suspended"] = True
                yield Suspend(name, job.uid, True)
        elif not is_suspended(job):
            entry.pop("suspended", None)


def _begun(
    sweep: Sweep,
    spec: LoRARLSweepSpec,
    trials: Sequence[Trial],
    entries: Entries,
    jobs: Mapping[str, Job],
    not_made: Mapping[str, NotMade],
    held: Collection[str],
    now: datetime,
) -> Iterator[SweepAction]:
    """What begins or continues in the free places. Those that were suspended come first, from the highest rung."""
    if spec.suspend:
        return
    places = spec.parallelism - sum(takes_place(one, jobs.get(name)) for name, one in entries.items())
    for name, entry in sorted(entries.items(), key=lambda each: -len(each[1].get("rungs") or ())):
        if places > 0 and continues(name, entry, held) and name in jobs:
            if at_rest(entry, jobs[name]):
                places -= 1
            yield Suspend(name, jobs[name].uid, False)
    gives_places = spec.stopping is not None and spec.stopping.halving is not None
    looks = _LOOKS
    for trial in trials:
        entry, refused = entries[trial.name], not_made.get(trial.name)
        may_be_made = refused is None or refused.until <= now
        # If its job is not refused any more, a trial that can give its place away does so.
        asks = gives_places and places <= 0 and refused is not None and not refused.passes
        if not (looks > 0 and _waits(entry) and may_be_made and (places > 0 or asks)):
            continue
        looks -= 1
        manifest = _manifest(sweep, spec, trial)
        if isinstance(manifest, str):
            # A path of the sweep may be misspelt. Unknown fields of the template are those of a newer definition.
            newer = if_newer(spec.template.spec)
            entry |= said(WAITING if newer else REFUSED, Sweeping.REFUSED, f"{manifest} {newer}".strip())
        elif asks:
            yield Try(trial.name, manifest)
        else:
            places -= 1
            yield Make(trial.name, manifest)


def _waits(entry: Mapping[str, Any] | None) -> bool:
    return entry is not None and entry["phase"] == WAITING


def _goal(spec: LoRARLSweepSpec, trials: Sequence[Trial]) -> Goal | None:
    """Which values are better, by the algorithm of the first trial; None without an objective."""
    if spec.objective is None:
        return None
    try:
        return goal_of(spec.objective, spec_of(spec.template.spec, trials[0]))
    except ManifestError:  # That trial is refused.
        return goal_of(spec.objective, spec.template.spec)


def _manifest(sweep: Sweep, spec: LoRARLSweepSpec, trial: Trial) -> Manifest | str:
    """The job of a trial, or why its spec is not valid."""
    try:
        document = job_document(spec.template.spec, trial)
        found: Sequence[Fault] = faults(document)
    except ManifestError as error:
        found = error.faults
    if found:
        return " ".join(map(str, found))
    about = spec.template.metadata
    owner = {
        "apiVersion": API_VERSION,
        "kind": SWEEP_KIND,
        "name": sweep.name,
        "uid": sweep.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": trial.name,
        "namespace": sweep.namespace,
        "labels": {**dict(sweep.queue_labels), **about.labels, LABEL_SWEEP: sweep.name},
        "annotations": {**about.annotations, ANNOTATION_TRIAL: trial.label[:_LONGEST_ANNOTATION]},
        "ownerReferences": [owner],
    }
    return {**document, "metadata": metadata}


def _seconds_left(spec: LoRARLSweepSpec, status: Mapping[str, Any], now: datetime) -> float | None:
    """Seconds until the sweep is deleted; None if it is not."""
    ended, ttl = time(status.get("completionTime")), spec.ttl_seconds_after_finished
    if ended is None or ttl is None:
        return None
    return max(0.0, (ended + timedelta(seconds=ttl) - now).total_seconds())
