"""The operator's part of a job's status: what it holds, and how it is changed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from lorarl_operator.models import Job
from lorarl_operator.parse import time

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
"""Phases in which the attempt's RayJob has been seen and its pods may have run: when it is gone, the attempt is lost."""

COUNTERS = ("attempts", "preemptions")
FIELDS = (
    *("phase", "conditions", "observedGeneration", *COUNTERS, "restarts"),
    *("rayJobName", "dashboardURL", "startTime", "completionTime"),
)
"""Fields of the status that the operator writes. The others are the trainer's."""
TRAINERS = ("step", "totalSteps", "adapter", "failure")
"""Those of the trainer's that the operator reads."""

_LONGEST_MESSAGE = 4096
_MOST = 2**31
_NUMBERS = ("observedGeneration", *COUNTERS, "restarts", "step", "totalSteps")
_TYPES: dict[str, type] = {"conditions": list, "adapter": dict, "failure": dict} | dict.fromkeys(_NUMBERS, int)


def sound(status: dict[str, Any]) -> dict[str, Any]:
    """A stored status without what is not of its type: an older CRD, or somebody's hand, may have let it in."""
    kept: dict[str, Any] = {
        key: value
        for key, value in status.items()
        if key in (*FIELDS, *TRAINERS)
        and type(value) is _TYPES.get(key, str)
        and not (isinstance(value, int) and value >= _MOST)
    }
    if "conditions" in kept:
        kept["conditions"] = [
            each for each in kept["conditions"] if isinstance(each, dict) and isinstance(each.get("type"), str)
        ]
    return kept


class Draft:
    """The operator's part of a status while it is changed. It starts as what is there."""

    def __init__(self, job: Job, status: dict[str, Any], now: datetime) -> None:
        """Start from the status that was observed, which is `sound`."""
        self._before = {key: status[key] for key in FIELDS if key in status}
        self._fields = dict(self._before)
        self._generation = job.generation
        self._now = moment(now)
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

    def counter(self, name: str) -> int:
        """`attempts` or `preemptions`."""
        return int(self._fields.get(name, 0))

    def count(self, name: str) -> int:
        """Count one more, and give the new number."""
        self._fields[name] = self.counter(name) + 1
        return self.counter(name)

    def put(self, name: str, value: str | None) -> None:
        """Set a field, or with None leave it out."""
        if value is None:
            self._fields.pop(name, None)
        else:
            self._fields[name] = value

    def start_clock(self) -> None:
        """Set startTime, where it is not set yet."""
        self._fields.setdefault("startTime", self._now)

    def end_clock(self) -> None:
        """Set completionTime."""
        self._fields["completionTime"] = self._now

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return bool(self._conditions.get(kind, {}).get("status") == "True")

    def reason(self, kind: str) -> str:
        """Reason of a condition; empty without it."""
        return str(self._conditions.get(kind, {}).get("reason", ""))

    def message(self, kind: str) -> str:
        """Message of a condition; empty without it."""
        return str(self._conditions.get(kind, {}).get("message", ""))

    def since(self, kind: str) -> datetime | None:
        """When a condition last changed."""
        return time(self._conditions.get(kind, {}).get("lastTransitionTime"))

    def condition(self, kind: str, holds: bool, reason: str, message: str, *, anew: bool = False) -> None:
        """Set a condition.

        A message that differs in its numbers alone is not news: schedulers and queues count anew all the time.

        Args:
            kind: Its type.
            holds: True or False.
            reason: One CamelCase word.
            message: For people.
            anew: Whether lastTransitionTime starts anew though the condition was False before: the end of an attempt, the beginning of a
                wait that a deadline counts from.
        """
        message = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."
        old = self._conditions.get(kind, {})
        new = {"type": kind, "status": str(holds), "reason": reason, "message": message}
        same_status = old.get("status") == new["status"]
        if same_status and old.get("reason") == reason and _words(old.get("message")) == _words(message) and not anew:
            return
        new["lastTransitionTime"] = (
            old["lastTransitionTime"] if same_status and not anew and old.get("lastTransitionTime") else self._now
        )
        self._conditions[kind] = {**new, "observedGeneration": self._generation}

    def written(self) -> dict[str, Any] | None:
        """The status to write; None where it is what is there already."""
        fields: dict[str, Any] = {name: self.counter(name) for name in COUNTERS}
        fields |= {
            **self._fields,
            "restarts": sum(self.counter(name) for name in COUNTERS),
            "observedGeneration": self._generation,
        }
        if self._conditions:
            fields["conditions"] = [self._conditions[kind] for kind in sorted(self._conditions)]
        before = dict(self._before)
        if "conditions" in before:
            before["conditions"] = sorted(before["conditions"], key=lambda each: str(each["type"]))
        return None if fields == before else fields


def moment(when: datetime) -> str:
    """A time as the API has it, in whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _words(message: Any) -> str:
    return re.sub(r"[0-9]+", "0", str(message))
