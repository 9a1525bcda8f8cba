"""The conditions of what makes jobs: of a sweep and of a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lorarl_operator.decide.reason_row import Row
from lorarl_operator.decide.status import RUNNING, timestamp

_LONGEST_MESSAGE = 4096


def conditions_of(
    holds: Mapping[str, bool], stored: Mapping[str, Any], reason: Row, message: str, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return a condition of each type, all with one reason. lastTransitionTime moves only if its status changes."""
    before = {str(one.get("type")): one for one in stored.get("conditions") or ()}
    made = []
    for kind in sorted(holds):
        old, value = before.get(kind, {}), str(holds[kind])
        made.append(
            {
                "type": kind,
                "status": value,
                "reason": reason.value,
                "message": message[:_LONGEST_MESSAGE],
                "lastTransitionTime": (old.get("status") == value and old.get("lastTransitionTime")) or timestamp(now),
                "observedGeneration": generation,
            }
        )
    return made


def running_condition(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the condition Running; an empty one if there is none."""
    return next((dict(one) for one in status.get("conditions") or () if one.get("type") == RUNNING), {})
