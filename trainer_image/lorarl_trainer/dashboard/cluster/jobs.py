"""A LoRARLJob in one line: what its metadata, spec and status say. Pure.

The API server has checked the objects against the contract, but an older version of it may have let other values in: a
value of another type is read as if it was not there.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from lorarl_api.pod_overrides import QUEUE_LABEL

RAN, WAITS = ("Running", "Suspending"), ("Pending", "Starting", "Restarting")
"""Phases of a job that holds GPUs, and of one that will."""
MAKERS = {"LoRARLSweep": "sweep", "LoRARLSchedule": "schedule"}
"""What makes jobs, and how the page calls it."""
LONGEST_MESSAGE = 300


class JobRow(NamedTuple):
    """A job in the list.

    Attributes:
        phase: `Pending` before the operator has seen it.
        reason, message: of the condition Running: why it waits, or how it ended.
        queue: its queue of Kueue; empty without one.
        maker: of a sweep or schedule, as `sweep/NAME`; empty for a job of a user's.
        gpus: of its newest attempt.
        held: GPU-seconds of ended attempts; `held_since`: from when the present one holds its GPUs, else None.
        useful, lost, startup: GPU-seconds as the training reports them; None before it does.
        created, held_since: seconds since 1970.
        record: folder of its newest record, by its pods; empty if there is none.
    """

    namespace: str
    name: str
    uid: str
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    queue: str = ""
    maker: str = ""
    base_model: str = ""
    algorithm: str = ""
    step: int = 0
    total_steps: int = 0
    reward: float | None = None
    eval_score: float | None = None
    gpus: int = 0
    held: int = 0
    held_since: float | None = None
    useful: int | None = None
    lost: int | None = None
    startup: int | None = None
    restarts: int = 0
    created: float = 0.0
    record: str = ""

    @property
    def id(self) -> str:
        """Names it in addresses."""
        return f"{self.namespace}/{self.name}"

    def held_at(self, now: float) -> float:
        """Return the GPU-seconds that all its attempts have held. `now`: in seconds since 1970."""
        present = self.gpus * max(0.0, now - self.held_since) if self.held_since is not None else 0.0
        return self.held + present

    @property
    def holds(self) -> int:
        """The GPUs that it holds now."""
        return self.gpus if self.held_since is not None else 0


def job_row(job: Mapping[str, Any]) -> JobRow:
    """Return the line of a LoRARLJob."""
    meta, spec, status = job["metadata"], _dict(job, "spec"), _dict(job, "status")
    running, metrics, seconds = condition(status, "Running"), _dict(status, "metrics"), _dict(status, "gpuSeconds")
    return JobRow(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        phase=_text(status, "phase") or "Pending",
        reason=_text(running, "reason"),
        message=_text(running, "message")[:LONGEST_MESSAGE],
        queue=_text(_dict(meta, "labels"), QUEUE_LABEL),
        maker=_maker(meta),
        base_model=_text(_dict(spec, "model"), "uri")[:LONGEST_MESSAGE],
        algorithm=_text(_dict(spec, "algorithm"), "type"),
        step=_count(status, "step") or 0,
        total_steps=_count(status, "totalSteps") or _count(_dict(spec, "trainer"), "steps") or 0,
        reward=_number(metrics, "reward"),
        eval_score=_number(metrics, "evalScore"),
        gpus=_count(status, "gpus") or 0,
        held=_count(status, "heldGpuSeconds") or 0,
        held_since=seconds_of(status.get("gpusHeldSince")),
        useful=_count(seconds, "useful"),
        lost=_count(seconds, "lost"),
        startup=_count(seconds, "startup"),
        restarts=_count(status, "restarts") or 0,
        created=seconds_of(meta.get("creationTimestamp")) or 0.0,
        record=_text(status, "record"),
    )


def condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a status; empty if it has none of this type."""
    return next((one for one in conditions(status) if one.get("type") == kind), {})


def conditions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the conditions of a status."""
    found = status.get("conditions")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def seconds_of(text: object) -> float | None:
    """Return a time of the API in seconds since 1970; None if it is none."""
    try:
        return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp() if text else None
    except ValueError:
        return None


def _maker(meta: Mapping[str, Any]) -> str:
    owners = meta.get("ownerReferences") or ()
    owner: Mapping[str, Any] = next((one for one in owners if one.get("controller")), {})
    kind = MAKERS.get(str(owner.get("kind")))
    return f"{kind}/{owner['name']}" if kind else ""


def _dict(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return value if isinstance(value, str) else ""


def _count(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    return value if type(value) is int else None


def _number(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
