"""The status of a schedule, and the Events of its transitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lorarl_api.schedules.cron import MOST_MISSED
from lorarl_api.schedules.manifest import job_name
from lorarl_api.v1alpha1 import MAX_ACTIVE, SCHEDULE_KIND, LoRARLScheduleSpec
from lorarl_operator.decide.decision import Event
from lorarl_operator.decide.made_conditions import conditions_of, running_condition
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.reason_row import Row
from lorarl_operator.decide.reasons import Foreign
from lorarl_operator.decide.schedule_models import Schedule
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.status import (
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    STALLED,
    SUCCEEDED,
    SUSPENDED,
    timestamp,
)
from lorarl_operator.decide.valid_spec import if_newer

SCHEDULED, DELETED = "Scheduled", "Deleted"
_KEPT = ("lastScheduleTime", "lastSuccessfulTime", "lastJob", "lastPhase", "lastAdapter", "skipped", "active")


@dataclass(frozen=True, slots=True)
class Summary:
    """What the status of a schedule follows from.

    Attributes:
        jobs: Those that it owns, by their names.
        last: The newest time that has a job.
        upcoming: The time of the next job, which may have come; None while suspended.
        left_out: The newest time that got no job, as the status says it.
        refused: Why a job that is due cannot be made.
    """

    spec: LoRARLScheduleSpec
    jobs: Mapping[str, Job]
    last: datetime | None
    upcoming: datetime | None
    left_out: dict[str, Any] | None
    refused: NotMade | None


def phase_of(job: Job) -> str:
    """The phase of a job."""
    return str(job.read_status().get("phase") or PENDING)


def skipped(at: datetime, count: int, reason: Scheduling, message: str) -> dict[str, Any]:
    """The entry of a time that got no job."""
    return {"time": timestamp(at), "count": count, "reason": reason.value, "message": message}


def status_of(schedule: Schedule, stored: Mapping[str, Any], summary: Summary, now: datetime) -> dict[str, Any]:
    """The whole status."""
    unfinished = [job for _, job in sorted(summary.jobs.items()) if phase_of(job) not in FINISHED]
    phase, reason, message = _verdict(summary, unfinished)
    said: dict[str, Any] = {
        "phase": phase,
        "observedGeneration": schedule.generation,
        "active": [{"name": job.name, "uid": job.uid} for job in unfinished[-MAX_ACTIVE:]] or None,
        "lastSuccessfulTime": _last_success(stored, summary.jobs),
        "nextScheduleTime": summary.upcoming and timestamp(summary.upcoming),
        "lastAdapter": _last_adapter(stored, summary),
        "skipped": summary.left_out,
        **_last_job(schedule, stored, summary),
    }
    conditions = _conditions(schedule, stored, phase, reason, message, now)
    return {key: value for key, value in said.items() if value is not None} | {"conditions": conditions}


def invalid_status(schedule: Schedule, stored: Mapping[str, Any], why: str, now: datetime) -> dict[str, Any]:
    """The status of a schedule whose spec cannot be used. What was known of its jobs stays."""
    kept = {key: stored[key] for key in _KEPT if key in stored}
    message = f"The schedule cannot be used. {why} {if_newer(schedule.read_spec(), SCHEDULE_KIND)}".strip()
    conditions = _conditions(schedule, stored, FAILED, Scheduling.INVALID, message, now)
    return kept | {"phase": FAILED, "observedGeneration": schedule.generation, "conditions": conditions}


def _verdict(summary: Summary, unfinished: list[Job]) -> tuple[str, Row, str]:
    """Phase, reason and message."""
    follows = f"The next job is due at {timestamp(summary.upcoming)}." if summary.upcoming else "No job follows."
    running = f"{', '.join(job.name for job in unfinished[:3])} is unfinished. " if unfinished else ""
    phase = RUNNING if unfinished else SCHEDULED
    if summary.spec.suspend:
        return SUSPENDED, Scheduling.SUSPENDED, f"The schedule is suspended. {running}".strip()
    if summary.refused is not None:
        return phase, summary.refused.reason, summary.refused.message
    return phase, Scheduling.JOB_RUNS if unfinished else Scheduling.SCHEDULED, f"{running}{follows}"


def _last_job(schedule: Schedule, stored: Mapping[str, Any], summary: Summary) -> dict[str, Any]:
    """The newest time with a job, that job's name, and its phase, also if the job is gone."""
    if summary.last is None:
        return {}
    name = job_name(schedule.name, summary.last)
    told = {"lastScheduleTime": timestamp(summary.last)}
    if name in summary.jobs:
        return told | {"lastJob": name, "lastPhase": phase_of(summary.jobs[name])}
    if stored.get("lastJob") != name:
        return told
    before = stored.get("lastPhase")
    return told | {"lastJob": name, "lastPhase": before if before in FINISHED else DELETED}


def _last_success(stored: Mapping[str, Any], jobs: Mapping[str, Job]) -> str | None:
    times = [str(job.read_status().get("completionTime") or "") for job in jobs.values() if phase_of(job) == SUCCEEDED]
    return max([*times, str(stored.get("lastSuccessfulTime") or "")]) or None


def _last_adapter(stored: Mapping[str, Any], summary: Summary) -> dict[str, Any] | None:
    """The adapter of the newest job that succeeded, also if that job is gone, unless its files go with it."""
    kind = "best" if summary.spec.continue_from == "best" else "adapter"
    lost = {name for name, job in summary.jobs.items() if job.loses_files}
    before = stored.get("lastAdapter")
    found = [before] if before and before.get("job") not in lost else []
    for job in (job for name, job in summary.jobs.items() if name not in lost):
        status = job.read_status()
        adapter = status.get(kind) or {}
        if phase_of(job) == SUCCEEDED and adapter.get("uri") and status.get("completionTime"):
            about = {"job": job.name, "time": status["completionTime"]}
            found.append(about | {key: adapter[key] for key in ("uri", "sha256") if adapter.get(key)})
    # Of one job the newest view counts, which is later in the list: continueFrom may have changed.
    return max(enumerate(found), key=lambda one: (one[1]["time"], one[1]["job"], one[0]))[1] if found else None


def _conditions(
    schedule: Schedule, stored: Mapping[str, Any], phase: str, reason: Row, message: str, now: datetime
) -> list[dict[str, Any]]:
    """Running, and Stalled while it holds. By Stalled, Flux and helm judge an object."""
    stalled = reason in (Scheduling.INVALID, Scheduling.REFUSED, Scheduling.NAME_TAKEN, Scheduling.FORBIDDEN)
    holds = {RUNNING: phase == RUNNING} | ({STALLED: True} if stalled else {})
    return conditions_of(holds, stored, reason, message, schedule.generation, now)


def events_of(stored: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    """An Event for each transition: of the newest job, of times that were left out, and of the schedule."""
    yield from _news_of_job(stored, status)
    left_out, before = status.get("skipped"), stored.get("skipped")
    if left_out and left_out != before:
        count = f"More than {MOST_MISSED}" if left_out["count"] > MOST_MISSED else str(left_out["count"])
        times = "time gets" if left_out["count"] == 1 else "times get"
        bad = left_out["reason"] == Scheduling.MISSED
        text = f"{count} {times} no job: {left_out['message']}"
        yield Event("Warning" if bad else "Normal", Foreign(left_out["reason"]), text)
    says = running_condition(status)
    if running_condition(stored).get("reason") == says["reason"]:
        return
    if any(one["type"] == STALLED for one in status["conditions"]):
        yield Event("Warning", Foreign(says["reason"]), says["message"])
    elif says["reason"] == Scheduling.SUSPENDED:
        yield Event("Normal", Scheduling.SUSPENDED, says["message"])


def _news_of_job(stored: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Event]:
    name, phase = status.get("lastJob"), status.get("lastPhase")
    is_new = name != stored.get("lastJob")
    if name is not None and is_new:
        yield Event("Normal", Scheduling.JOB_MADE, f"Job {name} is for {status['lastScheduleTime']}.")
    if name is None or (not is_new and phase == stored.get("lastPhase")):
        return
    match phase:
        case "Succeeded":
            yield Event("Normal", Scheduling.JOB_SUCCEEDED, f"Job {name} has succeeded.")
        case "Failed":
            yield Event("Warning", Scheduling.JOB_FAILED, f"Job {name} failed. Its status says why.")
        case "Deleted":
            yield Event("Normal", Scheduling.JOB_DELETED, f"Job {name} was deleted before its end.")
