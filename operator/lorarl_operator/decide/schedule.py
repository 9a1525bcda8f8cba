"""Decide when a schedule starts a job: from what is there, and nothing else.

The times are those after the newest one that has a job, or after the schedule's creation. Only the newest of those that
have come is started. A job has the name of its time, so that no time has two, and the newest time is read from the jobs
as well as from the status. So an operator may be killed between creating a job and writing the status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.schedules.cron import MOST_MISSED, Due, Times
from lorarl_api.schedules.manifest import ANNOTATION_TIME, job_document, job_name, metadata_of, time_of
from lorarl_api.v1alpha1 import SCHEDULE_KIND, LoRARLScheduleSpec
from lorarl_operator.decide.awaited import is_published
from lorarl_operator.decide.decision import Event, Manifest
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.parse import time
from lorarl_operator.decide.schedule_models import Remove, Schedule, ScheduleAction, ScheduleDecision, Start
from lorarl_operator.decide.schedule_reasons import Scheduling
from lorarl_operator.decide.schedule_status import Summary, events_of, invalid_status, phase_of, skipped, status_of
from lorarl_operator.decide.status import FAILED, FINISHED, SUCCEEDED
from lorarl_operator.decide.valid_spec import SCHEMA_SECONDS, if_newer

_LONGEST_WAIT = 600.0
"""Seconds after which it is looked again. Waits are measured by another clock than times, which may have been set."""
_SHORTEST_WAIT = 0.1
_NOTHING = "none"


@dataclass(frozen=True, slots=True)
class _Now:
    """What a decision is made from."""

    schedule: Schedule
    spec: LoRARLScheduleSpec
    stored: Mapping[str, Any]
    jobs: Mapping[str, Job]
    now: datetime

    @property
    def unfinished(self) -> list[Job]:
        """The jobs that have not ended, also those that are being deleted."""
        return [job for _, job in sorted(self.jobs.items()) if phase_of(job) not in FINISHED]


def decide_schedule(
    schedule: Schedule, jobs: Mapping[str, Job], not_made: NotMade | None, now: datetime
) -> ScheduleDecision:
    """Decide about a schedule.

    Args:
        schedule: With its status.
        jobs: The jobs that it owns, by their names.
        not_made: Why its newest job was refused when it was last tried.
        now: By the API server's clock.
    """
    if schedule.deleted_at is not None:
        return ScheduleDecision()
    stored = schedule.read_status()
    try:
        spec, times = schedule.checked()
    except ManifestError as error:
        status = invalid_status(schedule, stored, str(error), now)
        again = SCHEMA_SECONDS if if_newer(schedule.read_spec(), SCHEDULE_KIND) else None
        news = tuple(events_of(stored, status))
        return ScheduleDecision(status if status != stored else None, news, recheck_seconds=again)
    seen = _Now(schedule, spec, stored, jobs, now)
    last = _last(seen)
    since = last or schedule.created_at
    due = times.due(since, now)
    left_out = _left_out(seen, times, due)
    starts = _starts(seen, due)
    refused = not_made if starts else None
    upcoming = None if spec.suspend else times.after(max(now, since))
    next_one = due.newest if starts and due is not None else upcoming
    told = None if refused is not None and refused.passes else refused
    status = status_of(schedule, stored, Summary(spec, jobs, last, next_one, left_out, told), now)
    events, actions = list(events_of(stored, status)), list[ScheduleAction]()
    if starts and due is not None and (refused is None or refused.until <= now):
        replaced = [job for job in _in_the_way(seen) if job.deleted_at is None]
        events += (Event("Warning", Scheduling.REPLACED, f"Job {job.name} is deleted.") for job in replaced)
        actions = [*map(Remove, replaced), Start(_manifest(seen, status, due.newest))]
    else:  # The status is written first: it has what the jobs said.
        actions = [Remove(job) for job in _old(seen)]
    new = status if status != stored else None
    return ScheduleDecision(new, tuple(events), tuple(actions), _wait(upcoming, refused, now))


def _last(seen: _Now) -> datetime | None:
    """The newest time that has a job, or had one."""
    found = [time(seen.stored.get("lastScheduleTime")), *(time_of(seen.schedule.name, name) for name in seen.jobs)]
    return max((one for one in found if one is not None), default=None)


def _starts(seen: _Now, due: Due | None) -> bool:
    """Whether the newest time that has come gets its job."""
    if due is None or seen.spec.suspend or _too_late(seen, due):
        return False
    return seen.spec.concurrency_policy != "Forbid" or not seen.unfinished


def _too_late(seen: _Now, due: Due) -> bool:
    deadline = seen.spec.starting_deadline_seconds
    return deadline is not None and seen.now - due.newest > timedelta(seconds=deadline)


def _in_the_way(seen: _Now) -> list[Job]:
    return seen.unfinished if seen.spec.concurrency_policy == "Replace" else []


def _left_out(seen: _Now, times: Times, due: Due | None) -> dict[str, Any] | None:
    """The newest time that gets no job, with those before it that nothing was said about."""
    before, last = seen.stored.get("skipped"), _last(seen)
    if before and last and time(before.get("time")) == last:
        before = None  # It has its job now.
    if due is None or seen.spec.suspend:
        return before
    told = [one for one in (last, time((before or {}).get("time"))) if one is not None]
    news = times.due(max(told, default=seen.schedule.created_at), seen.now)
    if news is None:
        return before
    if _too_late(seen, due):
        limit = f"{seen.spec.starting_deadline_seconds} seconds ago (startingDeadlineSeconds)"
        return skipped(news.newest, news.count, Scheduling.MISSED, f"The newest was due more than {limit}.")
    if not _starts(seen, due):
        names = ", ".join(job.name for job in seen.unfinished[:3])
        why = f"{names} is unfinished, and concurrencyPolicy is Forbid."
        return skipped(news.newest, news.count, Scheduling.SKIPPED, why)
    if news.before is None:
        return before
    count = news.count if news.count > MOST_MISSED else news.count - 1
    return skipped(news.before, count, Scheduling.MISSED, "Only the newest time gets a job.")


def _manifest(seen: _Now, status: Mapping[str, Any], at: datetime) -> Manifest:
    """The job of a time."""
    schedule, raw = seen.schedule, seen.schedule.read_spec()
    adapter = status.get("lastAdapter") or {}
    start_from = None if seen.spec.continue_from == _NOTHING else adapter.get("uri")
    name = job_name(schedule.name, at)
    about = {"namespace": schedule.namespace, "name": schedule.name, "uid": schedule.uid}
    local = at.astimezone(seen.schedule.checked()[1].zone).isoformat()
    metadata = metadata_of(
        about | {"labels": dict(schedule.queue_labels)},
        raw["template"].get("metadata") or {},
        name,
        {ANNOTATION_TIME: local},
    )
    return {**job_document(raw["template"]["spec"], name, start_from), "metadata": metadata}


def _old(seen: _Now) -> Iterator[Job]:
    """Jobs beyond the limits of the history.

    One whose adapter an unfinished job started from stays until its end, and one from which the next job starts. So
    does one that has something to publish.
    """
    used = {str((job.read_spec().get("adapter") or {}).get("initFrom")) for job in seen.unfinished}
    if seen.spec.continue_from != _NOTHING:
        used.add(str((seen.stored.get("lastAdapter") or {}).get("uri")))
    kept = {SUCCEEDED: seen.spec.successful_jobs_history_limit, FAILED: seen.spec.failed_jobs_history_limit}
    for phase, limit in kept.items():
        ended = sorted((job for job in seen.jobs.values() if phase_of(job) == phase), key=_ended, reverse=True)
        for job in ended[limit:]:
            adapters = {(job.read_status().get(key) or {}).get("uri") for key in ("adapter", "best")}
            if job.deleted_at is None and not adapters & used and is_published(job):
                yield job


def _ended(job: Job) -> tuple[str, str]:
    return str(job.read_status().get("completionTime") or ""), job.name


def _wait(upcoming: datetime | None, refused: NotMade | None, now: datetime) -> float | None:
    """Seconds until the next time, or until what was refused is tried again."""
    moments: Sequence[datetime] = [one for one in (upcoming, refused.until if refused else None) if one is not None]
    if not moments:
        return None
    return min(_LONGEST_WAIT, max(_SHORTEST_WAIT, (min(moments) - now).total_seconds()))
