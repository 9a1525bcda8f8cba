"""The operator's part of a job's status: its fields, and how a decision changes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from lorarl_operator.decide.models import Job
from lorarl_operator.decide.parse import time
from lorarl_operator.decide.reasons import Foreign, Reason, Waiting

PENDING: Final = "Pending"
STARTING: Final = "Starting"
RUNNING: Final = "Running"
SUSPENDING: Final = "Suspending"
SUSPENDED: Final = "Suspended"
RESTARTING: Final = "Restarting"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FINISHED = frozenset({SUCCEEDED, FAILED})
"""Phases that a job never leaves."""
MAY_HAVE_RUN = frozenset({STARTING, RUNNING})
"""Phases in which the attempt's RayJob was seen and its pods may have run. If it disappears, the attempt is lost."""

RECONCILING: Final = "Reconciling"
"""Condition of a job that is on its way: it waits, starts, restarts, recovers or is being suspended."""
STALLED: Final = "Stalled"
"""Condition of a job that gets no further by itself: it failed, was stopped, or its spec has to be corrected."""
PUBLISHED: Final = "Published"
"""Condition of what `decide/publishing.py` decides. It is written apart from the other conditions."""

_FOR_A_PERSON: frozenset[str] = frozenset({Waiting.INVALID, Waiting.QUEUE_STOPPED})
"""Reasons of the condition Running with which a waiting job is stalled: only a person can end that."""

COUNTERS = ("attempts", "preemptions")
FIELDS = (
    *("phase", "conditions", "observedGeneration", *COUNTERS, "restarts"),
    *("rayJobName", "dashboardURL", "startTime", "completionTime", "attemptEndTime", "waitingSince", "gpus"),
    *("policyDrift", "preemptionsWithoutProgress", "furthestStep", "faultyNodes", "trainerImage"),
    *("recoveries", "recoveringSince", "restartsInPlace", "heldGpuSeconds", "gpusHeldSince"),
    *("drain", "nodes", "requestedNodes"),
)
"""Status fields that the operator writes. The trainer writes the others."""
TRAINERS = (
    *("step", "totalSteps", "adapter", "checkpointTime", "failure", "workers", "resumedFromStep"),
    "estimatedRemainingSeconds",
)
"""The trainer's fields that the operator reads."""

_LONGEST_MESSAGE = 4096
_INTEGER_LIMIT = 2**31
_SECONDS_LIMIT = 2**53
"""A thousand GPUs reach the other limit in a month."""
_NUMBERS = (
    *("observedGeneration", *COUNTERS, "restarts", "gpus", "step", "totalSteps"),
    *("preemptionsWithoutProgress", "furthestStep", "recoveries", "resumedFromStep", "restartsInPlace"),
    *("heldGpuSeconds", "estimatedRemainingSeconds", "nodes", "requestedNodes"),
)
_DICTS = ("adapter", "failure", "policyDrift", "workers", "drain")
_LISTS = ("conditions", "faultyNodes")
_TYPES: dict[str, type] = dict.fromkeys(_LISTS, list) | dict.fromkeys(_DICTS, dict) | dict.fromkeys(_NUMBERS, int)


def well_typed(status: dict[str, Any]) -> dict[str, Any]:
    """A stored status without the values of a wrong type, which an older CRD or a manual edit may have let in."""
    kept: dict[str, Any] = {
        key: value
        for key, value in status.items()
        if key in (*FIELDS, *TRAINERS)
        and type(value) is _TYPES.get(key, str)
        and not (isinstance(value, int) and value >= (_SECONDS_LIMIT if key == "heldGpuSeconds" else _INTEGER_LIMIT))
    }
    if "conditions" in kept:
        kept["conditions"] = [
            each
            for each in kept["conditions"]
            if isinstance(each, dict) and isinstance(each.get("type"), str) and each["type"] != PUBLISHED
        ]
    return kept


def whole_drift(value: Any) -> dict[str, Any] | None:
    """`status.policyDrift` if it is whole: the step, and the nodes that each of its attempts had."""
    match value:
        case {"step": int(), "nodes": [*nodes]} if all(isinstance(node, str) for node in nodes):
            return dict(value)
    return None


class Draft:
    """The operator's part of a status while a decision changes it. It starts from the stored status."""

    def __init__(self, job: Job, status: dict[str, Any], now: datetime) -> None:
        """Start from the observed status, which is `well_typed`."""
        self._before = {key: status[key] for key in FIELDS if key in status}
        self._fields = dict(self._before)
        self._generation = job.generation
        self._now = timestamp(now)
        self._conditions: dict[str, dict[str, Any]] = {
            each["type"]: dict(each) for each in status.get("conditions", ())
        }

    @property
    def phase(self) -> str:
        """The phase; empty before the first write."""
        return str(self._fields.get("phase", ""))

    @phase.setter
    def phase(self, phase: str) -> None:
        self._fields["phase"] = phase

    def before(self, name: str) -> int:
        """A number of the stored status; 0 if it is not set."""
        return int(self._before.get(name, 0))

    def counter(self, name: str) -> int:
        """A number of the status; 0 if it is not set."""
        return int(self._fields.get(name, 0))

    def count(self, name: str) -> int:
        """Increment a counter and return it."""
        self._fields[name] = self.counter(name) + 1
        return self.counter(name)

    def put(self, name: str, value: Any) -> None:
        """Set a field; None removes it."""
        if value is None:
            self._fields.pop(name, None)
        else:
            self._fields[name] = value

    def restart(self, ray_job: str, restarts_in_place: int | None, reason: Reason, message: str) -> None:
        """Enter Restarting: the attempt has ended, and training continues in the RayJob of this name."""
        self.phase = RESTARTING
        self.put("rayJobName", ray_job)
        self.put("restartsInPlace", restarts_in_place)
        self.put("dashboardURL", None)
        self.stamp("attemptEndTime")
        self.condition("Running", False, reason, message)

    def start_clock(self) -> None:
        """Set startTime unless it is set."""
        self._fields.setdefault("startTime", self._now)

    def is_true(self, kind: str) -> bool:
        """Whether a condition is True."""
        return bool(self._conditions.get(kind, {}).get("status") == "True")

    def reason(self, kind: str) -> Foreign:
        """Reason of a condition; empty if it is not set."""
        return Foreign(str(self._conditions.get(kind, {}).get("reason", "")))

    def message(self, kind: str) -> str:
        """Message of a condition; empty if it is not set."""
        return str(self._conditions.get(kind, {}).get("message", ""))

    def since(self, kind: str) -> datetime | None:
        """The lastTransitionTime of a condition."""
        return time(self._conditions.get(kind, {}).get("lastTransitionTime"))

    def stamp(self, field: str) -> None:
        """Set a field to the present time."""
        self._fields[field] = self._now

    def at(self, field: str) -> datetime | None:
        """The time in a field; None if it is not set."""
        return time(self._fields.get(field))

    def condition(self, kind: str, holds: bool, reason: Reason, message: str, *, exact: bool = False) -> None:
        """Set a condition. lastTransitionTime moves only if its status changes.

        A message that differs only in its numbers changes nothing: schedulers and queues update their counts all the
        time. `exact`: These numbers are ours.
        """
        message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."
        old = self._conditions.get(kind, {})
        new = {"type": kind, "status": str(holds), "reason": reason, "message": message}
        same_status = old.get("status") == new["status"]
        told = old.get("message")
        same_words = told == message if exact else _words(told) == _words(message)
        if same_status and old.get("reason") == reason and same_words:
            return
        new["lastTransitionTime"] = (same_status and old.get("lastTransitionTime")) or self._now
        self._conditions[kind] = {**new, "observedGeneration": self._generation}

    def written(self) -> dict[str, Any] | None:
        """The status to write; None if it equals the stored one."""
        self._summarize()
        fields: dict[str, Any] = {name: self.counter(name) for name in COUNTERS}
        fields |= {
            **self._fields,
            "restarts": sum(self.counter(name) for name in COUNTERS),
            "observedGeneration": self._generation,
        }
        if self.phase != RUNNING:
            fields.pop("recoveringSince", None)
            fields.pop("drain", None)
        if self._conditions:
            fields["conditions"] = [self._conditions[kind] for kind in sorted(self._conditions)]
        before = dict(self._before)
        if "conditions" in before:
            before["conditions"] = sorted(before["conditions"], key=lambda each: str(each["type"]))
        return None if fields == before else fields

    def _summarize(self) -> None:
        """Set Reconciling or Stalled if it holds; otherwise remove it.

        By these two conditions kstatus judges objects of any kind, and so do Flux, helm and kapp. Without both, the
        object is current: a job is from when it runs, as a Job of batch/v1 is.
        https://github.com/kubernetes-sigs/cli-utils/blob/master/pkg/kstatus/README.md
        """
        stalled = self.phase == FAILED or (self.phase == PENDING and self.reason("Running") in _FOR_A_PERSON)
        settled = self.phase in (*FINISHED, SUSPENDED) or self.is_true("Running")
        for kind, holds in ((STALLED, stalled), (RECONCILING, not stalled and not settled)):
            if holds and "Running" in self._conditions:
                self.condition(kind, True, self.reason("Running"), self.message("Running"))
            else:
                self._conditions.pop(kind, None)


def timestamp(when: datetime) -> str:
    """A time in the API's format, in whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(message: Any) -> str:
    return re.sub(r"[0-9]+", "0", str(message))
