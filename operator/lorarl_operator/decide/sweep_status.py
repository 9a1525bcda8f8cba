"""The status of a sweep as a whole: its phase, conditions and counts, and the Events of its transitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lorarl_api.sweeps.halving import stored_verdict
from lorarl_api.v1alpha1 import SWEEP_KIND
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.made_conditions import conditions_of, running_condition
from lorarl_operator.decide.reasons import Foreign
from lorarl_operator.decide.status import (
    FAILED,
    PENDING,
    RECONCILING,
    RUNNING,
    STALLED,
    SUCCEEDED,
    SUSPENDED,
    SUSPENDING,
    timestamp,
)
from lorarl_operator.decide.sweep_models import Sweep, stored_trials
from lorarl_operator.decide.sweep_reasons import Sweeping
from lorarl_operator.decide.sweep_trials import DELETED, ENDED, REFUSED, STOPPED, STOPPING, WAITING
from lorarl_operator.decide.valid_spec import if_newer

COMPLETE = "Complete"
"""Condition of a sweep whose trials have all ended, and one of which at least succeeded."""
_NUMBERS = frozenset({"step", "value", "points", "uri", "sha256"})
"""What changes of a trial while it trains. It is written less often."""
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Summary:
    """What the status of a sweep follows from.

    Attributes:
        trials: Their entries.
        best: The entry of the best one.
        begins: Whether a job is about to be created.
    """

    suspend: bool
    trials: list[dict[str, Any]]
    best: dict[str, Any] | None
    begins: bool

    def count(self, *phases: str) -> int:
        """How many trials are in one of these phases."""
        return sum(one["phase"] in phases for one in self.trials)


def status_of(sweep: Sweep, stored: Mapping[str, Any], summary: Summary, now: datetime) -> dict[str, Any]:
    """The whole status."""
    total, ended = len(summary.trials), summary.count(*ENDED)
    active = total - ended - summary.count(WAITING)
    phase, reason, message = _verdict(summary, total, ended, active)
    part = {
        "phase": phase,
        "observedGeneration": sweep.generation,
        "total": total,
        "active": active,
        "finished": ended,
        "succeeded": summary.count(SUCCEEDED),
        "failed": summary.count(FAILED, REFUSED, DELETED),
        "stopped": summary.count(STOPPED),
        "trials": summary.trials,
    }
    if summary.best is not None:
        names = ("name", "label", "value", "step", "uri", "sha256", "equal")
        part["best"] = {key: summary.best[key] for key in names if key in summary.best}
    if ended == total:
        part["completionTime"] = stored.get("completionTime") or timestamp(now)
    return part | {"conditions": _conditions(sweep, stored, phase, reason, message, now)}


def invalid_status(sweep: Sweep, stored: Mapping[str, Any], why: str, now: datetime) -> dict[str, Any]:
    """The status of a sweep whose spec cannot be used. What was known of its trials stays."""
    kept = {key: value for key, value in stored.items() if key != "completionTime"}
    newer = if_newer(sweep.read_spec(), SWEEP_KIND)
    mend = newer or "Its trials never change: delete it, and apply a corrected one."
    message = f"The sweep cannot be used. {why} {mend}"
    conditions = _conditions(sweep, stored, FAILED, Sweeping.INVALID, message, now)
    return kept | {"phase": FAILED, "observedGeneration": sweep.generation, "conditions": conditions}


def _verdict(summary: Summary, total: int, ended: int, active: int) -> tuple[str, Sweeping, str]:
    """Phase, reason and message."""
    counts = f"{ended} of {total} trials have ended"
    succeeded = summary.count(SUCCEEDED)
    if ended == total:
        named = _named(summary.trials, FAILED, REFUSED, DELETED)
        text = f"{succeeded} of {total} trials succeeded.{f' Not these: {named}.' if named else ''}"
        return (SUCCEEDED, Sweeping.COMPLETE, text) if succeeded else (FAILED, Sweeping.NONE_SUCCEEDED, text)
    if summary.suspend:
        running = [one for one in summary.trials if one["phase"] not in (WAITING, SUSPENDED, *ENDED)]
        phase = SUSPENDING if running else SUSPENDED
        return phase, Sweeping.SUSPENDED, f"The sweep is suspended. {counts}."
    waiting = [one for one in summary.trials if one["phase"] == WAITING and one.get("reason")]
    if waiting and not active and not summary.begins:
        text = f"{counts}. {waiting[0]['name']} waits: {waiting[0].get('message', '')}"
        return PENDING, Sweeping.TRIALS_WAIT, text
    begun = active or ended
    return RUNNING if begun else PENDING, Sweeping.TRIALS_RUN, f"{counts}, and {active} are unfinished."


def _named(trials: Sequence[Mapping[str, Any]], *phases: str) -> str:
    found = [f"{one['name']} ({one.get('reason') or one['phase']})" for one in trials if one["phase"] in phases]
    return ", ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")


def _conditions(
    sweep: Sweep, stored: Mapping[str, Any], phase: str, reason: Sweeping, message: str, now: datetime
) -> list[dict[str, Any]]:
    """Running, and others while they hold. By Stalled and Reconciling, Flux and helm judge an object."""
    stalled = phase == FAILED or reason is Sweeping.TRIALS_WAIT
    ends = {COMPLETE: phase == SUCCEEDED, FAILED: phase == FAILED, STALLED: stalled}
    ends[RECONCILING] = not stalled and phase in (PENDING, SUSPENDING)
    holds = {RUNNING: phase == RUNNING} | {kind: True for kind, there in ends.items() if there}
    return conditions_of(holds, stored, reason, message, sweep.generation, now)


def is_pressing(stored: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether a status says more than newer numbers of its trials."""
    return _without_numbers(stored) != _without_numbers(status)


def _without_numbers(status: Mapping[str, Any]) -> dict[str, Any]:
    trials = [{k: v for k, v in one.items() if k not in _NUMBERS} for one in status.get("trials") or ()]
    return {**{key: value for key, value in status.items() if key != "best"}, "trials": trials}


def events_of(stored: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    """An Event for each trial and for the sweep that came into another state."""
    before = stored_trials(stored)
    for name, one in stored_trials(status).items():
        yield from _news_of_trial(name, before.get(name, {}), one)
    said, says = running_condition(stored), running_condition(status)
    if said.get("reason") != says["reason"]:
        bad = status["phase"] == FAILED or says["reason"] == Sweeping.TRIALS_WAIT
        yield Event("Warning" if bad else "Normal", Foreign(says["reason"]), says["message"])


def _news_of_trial(name: str, before: Mapping[str, Any], one: Mapping[str, Any]) -> Iterator[Event]:
    if one.get("uid") and not before.get("uid"):
        yield Event("Normal", Sweeping.TRIAL_MADE, f"Trial {name}: {one['label']}.")
    was, now = before.get("phase"), one["phase"]
    if was == now:
        if now == WAITING and one.get("reason") and before.get("reason") != one["reason"]:
            yield Event("Warning", Foreign(one["reason"]), f"Trial {name}: {one['message']}")
        return
    match now:
        case "Succeeded":
            yield Event("Normal", Sweeping.TRIAL_SUCCEEDED, f"Trial {name} has succeeded.")
        case "Failed":
            yield Event("Warning", Sweeping.TRIAL_FAILED, f"Trial {name} failed: {one.get('message', '')}")
        case "Deleted":
            yield Event("Warning", Sweeping.TRIAL_DELETED, f"Trial {name}: {one['message']}")
        case "Refused":
            yield Event("Warning", Sweeping.REFUSED, f"Trial {name}: {one['message']}")
        case _ if now in (STOPPING, STOPPED) and was not in (STOPPING, STOPPED):
            yield Event("Normal", Sweeping.STOPPED, f"Trial {name} is stopped: {stored_verdict(one['stopped'])}.")
