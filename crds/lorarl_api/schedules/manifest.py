"""The manifest of a schedule: its jobs, and all its faults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from pydantic import ValidationError

from lorarl_api.faults import Fault, ManifestError, from_pydantic, from_rule, shown
from lorarl_api.hinted import rules_of_wrong_fields
from lorarl_api.load import faults
from lorarl_api.rules import broken_rules
from lorarl_api.schedules.cron import CronError, times_of
from lorarl_api.template_schema import schedule_schema
from lorarl_api.v1alpha1 import API_VERSION, KIND, RULES_LATER, SCHEDULE_KIND, LoRARLSchedule, LoRARLScheduleSpec

LABEL_SCHEDULE = "lorarl.io/schedule"
"""On a job: name of its schedule."""
ANNOTATION_TIME = "lorarl.io/scheduled-at"
"""On a job: its scheduled time, in the zone of its schedule."""
ANNOTATION_BY_HAND = "lorarl.io/run-now"
"""On a job that a person started: there is no scheduled time."""
_JOB = ("spec", "template", "spec")
_QUEUE = "kueue.x-k8s.io/"
_SECONDS = 60


def checked_schedule(document: Any) -> LoRARLSchedule:
    """The schedule of a parsed manifest, with its template.

    Raises:
        ManifestError: it has faults. The error has all of them.
    """
    try:
        schedule = LoRARLSchedule.model_validate(document, by_alias=True, by_name=False, context=RULES_LATER)
    except ValidationError as error:
        besides = rules_of_wrong_fields(document, error, LoRARLSchedule, schedule_schema(), in_cluster=True)
        raise ManifestError([*from_pydantic(error, schedule_schema()), *besides]) from error
    # Rules of the template's spec are found as those of its job.
    own = broken_rules(schedule, in_cluster=True, wanted=lambda path: path[: len(_JOB)] != _JOB)
    of_rules = (from_rule(document, path, rule) for path, rule in own)
    if found := [*_of_times(schedule.spec), *of_rules, *_of_job(schedule, document)]:
        raise ManifestError(found)
    return schedule


def schedule_faults(document: Any) -> list[Fault]:
    """All faults of a parsed manifest of a schedule."""
    try:
        checked_schedule(document)
    except ManifestError as error:
        return list(error.faults)
    return []


def _of_times(spec: LoRARLScheduleSpec) -> Iterator[Fault]:
    """The faults that no pattern finds: a field out of its range, a day that no month has, an unknown zone."""
    try:
        times_of(spec.schedule, spec.time_zone)
    except ZoneInfoNotFoundError:
        hint = "Write a name of the IANA database, such as Europe/Berlin or Etc/UTC."
        yield Fault("spec.timeZone", shown(spec.time_zone), "a known time zone", hint)
        yield from _of_times(spec.model_copy(update={"time_zone": "Etc/UTC"}))
    except CronError as error:
        hint = 'Write for example "0 3 * * *" for 3:00 each day, or "*/30 * * * *" for each half hour.'
        yield Fault("spec.schedule", f"{shown(spec.schedule)} ({error})", error.expected, hint)


def _of_job(schedule: LoRARLSchedule, document: Any) -> Iterator[Fault]:
    """The faults of a job of the template that continues from another, which only the job as a whole shows."""
    spec = schedule.spec
    start = None if spec.continue_from == "none" else f"{spec.template.spec.checkpoint.uri.rstrip('/')}/any"
    name = job_name(schedule.metadata.name, datetime(2030, 1, 1, tzinfo=UTC))
    for fault in faults(job_document(document["spec"]["template"]["spec"], name, start), in_cluster=True):
        yield replace(fault, path=f"spec.template.{fault.path}")


def job_document(spec: Mapping[str, Any], name: str, start_from: str | None) -> dict[str, Any]:
    """The manifest of a job, from the template's spec. `start_from`: URI of the adapter that it continues from."""
    made = deepcopy(dict(spec))
    if start_from is not None:
        made["adapter"] = {**made["adapter"], "initFrom": start_from}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": made}


def job_name(schedule: str, time: datetime) -> str:
    """The name of the job of a scheduled time. It says the time, so that no time has two jobs."""
    return f"{schedule}-{int(time.timestamp()) // _SECONDS}"


def time_of(schedule: str, job: str) -> datetime | None:
    """The scheduled time that a job's name says; None for a job that was started by hand."""
    minutes = job.removeprefix(f"{schedule}-")
    if len(minutes) != 8 or not (minutes.isascii() and minutes.isdecimal()):
        return None
    return datetime.fromtimestamp(int(minutes) * _SECONDS, UTC)


def metadata_of(
    about: Mapping[str, Any], template: Mapping[str, Any], job: str, annotations: Mapping[str, str]
) -> dict[str, Any]:
    """The metadata of a job of a schedule, which is its owner.

    Args:
        about: The schedule's metadata: name, namespace, uid and labels.
        template: That of its template.
        job: The job's name.
        annotations: Annotations of this job alone.
    """
    queue = {key: value for key, value in (about.get("labels") or {}).items() if key.startswith(_QUEUE)}
    owner = {"apiVersion": API_VERSION, "kind": SCHEDULE_KIND, "name": about["name"], "uid": about["uid"]}
    return {
        "name": job,
        "namespace": about["namespace"],
        "labels": {**queue, **(template.get("labels") or {}), LABEL_SCHEDULE: about["name"]},
        "annotations": {**(template.get("annotations") or {}), **annotations},
        "ownerReferences": [owner | {"controller": True}],
    }
