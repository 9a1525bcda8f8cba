"""A schedule as it was observed, and what a decision about it does."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.schedules.cron import Times, times_of
from lorarl_api.schedules.manifest import checked_schedule
from lorarl_api.v1alpha1 import API_VERSION, SCHEDULE_KIND, LoRARLScheduleSpec
from lorarl_operator.decide.decision import Event, Manifest
from lorarl_operator.decide.models import Job


@dataclass(frozen=True, slots=True)
class Schedule:
    """A LoRARLSchedule.

    Attributes:
        queue_labels: Labels of Kueue, which its jobs get too.
        spec: `spec` as compact JSON.
        status: `status` as compact JSON.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    created_at: datetime
    deleted_at: datetime | None
    queue_labels: tuple[tuple[str, str], ...]
    spec: bytes
    status: bytes

    def read_spec(self) -> dict[str, Any]:
        """The spec as a new dict, as the user wrote it."""
        found = json.loads(self.spec)
        return found if isinstance(found, dict) else {}

    def read_status(self) -> dict[str, Any]:
        """The status as a new dict."""
        found = json.loads(self.status)
        return found if isinstance(found, dict) else {}

    def checked(self) -> tuple[LoRARLScheduleSpec, Times]:
        """The valid spec and its times.

        Raises:
            ManifestError: The spec is not valid.
        """
        found = _checked(self.name, self.spec)
        if isinstance(found, ManifestError):
            raise found
        return found


@lru_cache(maxsize=256)
def _checked(name: str, spec: bytes) -> tuple[LoRARLScheduleSpec, Times] | ManifestError:
    document = {"apiVersion": API_VERSION, "kind": SCHEDULE_KIND, "metadata": {"name": name}, "spec": json.loads(spec)}
    try:
        schedule = checked_schedule(document)
    except ManifestError as error:
        return error
    return schedule.spec, times_of(schedule.spec.schedule, schedule.spec.time_zone)


@dataclass(frozen=True, slots=True)
class Start:
    """Create the job of a scheduled time, unless it is there."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Remove:
    """DELETE a job, if it is still the one with this uid."""

    job: Job


type ScheduleAction = Start | Remove


@dataclass(frozen=True, slots=True)
class ScheduleDecision:
    """What to do about a schedule: first the status, then its Events, then the actions, until one fails.

    Attributes:
        status: The whole status; None if it is stored already.
        recheck_seconds: Look again after this time even if nothing happens.
    """

    status: dict[str, Any] | None = None
    events: tuple[Event, ...] = ()
    actions: tuple[ScheduleAction, ...] = ()
    recheck_seconds: float | None = None
