"""One trial of a sweep: what its job says of it, and what is known of it when its job is gone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from lorarl_api.sweeps.stopping import Curve, extended
from lorarl_api.sweeps.trials import Trial
from lorarl_api.v1alpha1 import MAX_POINTS, SweepObjective
from lorarl_operator.decide.made_conditions import running_condition
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.not_made import NotMade
from lorarl_operator.decide.reasons import Waiting
from lorarl_operator.decide.status import FAILED, FINISHED, PENDING, SUSPENDED
from lorarl_operator.decide.sweep_reasons import Sweeping

WAITING, REFUSED, STOPPING, STOPPED, DELETED = "Waiting", "Refused", "Stopping", "Stopped", "Deleted"
ENDED = frozenset({*FINISHED, REFUSED, STOPPED, DELETED})
"""Phases of trials that the sweep does not wait for."""
_FILES = ("uri", "sha256")
"""Where the adapter of a trial is."""
_LONGEST_MESSAGE = 2048
_LONGEST_LABEL = 1024


def trial_entry(
    trial: Trial, before: Mapping[str, Any], job: Job | None, not_made: NotMade | None, objective: SweepObjective | None
) -> dict[str, Any]:
    """What the status says of a trial, before early stopping and suspension are decided.

    `before` is what it said until now, `job` the trial's own job if it is there, and `not_made` why that was refused.
    """
    entry = {"name": trial.name, "label": trial.label[:_LONGEST_LABEL]}
    if job is not None and before.get("uid") in (None, job.uid):
        entry |= {**_kept(before), **_of_job(job, objective)}
        return {key: value for key, value in entry.items() if not (job.loses_files and key in _FILES)}
    if before.get("uid"):
        gone = dict(before) | entry
        if before.get("phase") not in ENDED:
            why = "Its job was deleted before its end. It is not made again."
            gone |= said(DELETED, Sweeping.TRIAL_DELETED, why)
        return gone
    if before.get("phase") == REFUSED:
        return dict(before) | entry
    if not_made is not None and not_made.passes:
        return {**entry, "phase": WAITING, "message": not_made.message}
    if not_made is not None:
        return {**entry, **said(REFUSED if not_made.for_good else WAITING, not_made.reason, not_made.message)}
    # The operator before this one may have been refused: that stays said until the trial is tried again.
    return {**entry, "phase": WAITING, **{key: before[key] for key in ("reason", "message") if key in before}}


def said(phase: str, reason: str, message: str) -> dict[str, Any]:
    """The part of an entry that says why it is in its phase."""
    return {"phase": phase, "reason": str(reason), "message": message[:_LONGEST_MESSAGE]}


def _kept(before: Mapping[str, Any]) -> dict[str, Any]:
    """What only the sweep knows of a trial, and its last values, which a job that starts again has not yet."""
    names = ("suspended", "stopped", "points", "rungs", "step", "value", "uri", "sha256")
    return {key: before[key] for key in names if key in before}


def _of_job(job: Job, objective: SweepObjective | None) -> dict[str, Any]:
    status = job.read_status()
    entry: dict[str, Any] = {"uid": job.uid, "phase": _phase_of(job, status)}
    if isinstance(status.get("step"), int):
        entry["step"] = status["step"]
    if entry["phase"] == FAILED:
        why: Mapping[str, Any] = next((one for one in status.get("conditions") or () if one.get("type") == FAILED), {})
        entry |= said(FAILED, why.get("reason") or Sweeping.TRIAL_FAILED, why.get("message") or "The job failed.")
    return entry | (_reached(status, objective.metric) if objective else {})


def _phase_of(job: Job, status: Mapping[str, Any]) -> str:
    """The phase of a trial. One that its queue keeps stopped stays Pending, also when it is suspended.

    Nothing of it runs, and it does not begin when an administrator starts its Workload again.
    """
    phase = str(status.get("phase") or PENDING)
    stopped = running_condition(status).get("reason") == Waiting.QUEUE_STOPPED
    return SUSPENDED if phase == PENDING and stopped and is_suspended(job) else phase


def _reached(status: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The value of the objective, and the adapter that has it, as far as the job says them."""
    best, metrics = status.get("best") or {}, status.get("metrics") or {}
    value = best.get("value") if metric == "best" else metrics.get(metric)
    adapter = best if metric == "best" else status.get("adapter") or {}
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return {}
    return {"value": float(value)} | {key: adapter[key] for key in ("uri", "sha256") if adapter.get(key)}


def curve_of(entry: Mapping[str, Any]) -> Curve:
    """The values that early stopping compares."""
    return [(int(point["step"]), float(point["value"])) for point in entry.get("points") or ()]


def with_point(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with its present value among those that early stopping compares."""
    if "value" not in entry or not entry.get("step"):
        return dict(entry)
    points = extended(curve_of(entry), int(entry["step"]), float(entry["value"]), MAX_POINTS)
    return {**entry, "points": [{"step": step, "value": value} for step, value in points]}


def is_suspended(job: Job) -> bool:
    """Whether a job's spec says that it is suspended."""
    return job.read_spec().get("suspend") is True


def at_rest(entry: Mapping[str, Any], job: Job | None) -> bool:
    """Whether the sweep has suspended a trial, and nothing of its job runs any more."""
    return bool(entry.get("suspended")) and job is not None and is_suspended(job) and entry["phase"] == SUSPENDED
