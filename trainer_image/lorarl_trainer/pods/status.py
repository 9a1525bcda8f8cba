"""The trainer's part of a LoRARLJob's status, derived from the events of the run. Pure.

It writes step, totalSteps, progress, metrics, adapter, checkpointTime, best, workers, failure, resumedFromStep and
estimatedRemainingSeconds; see `lorarl_api.v1alpha1.LoRARLJobStatus`. The rest of the status belongs to the operator.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.masked import without_secrets
from lorarl_trainer.pods.gpu_time import GpuTime
from lorarl_trainer.progress import (
    BestFound,
    CheckpointDone,
    EvalDone,
    Event,
    MoreWorkers,
    RecordOpened,
    RunFinished,
    RunStarted,
    StepDone,
    WorkersLost,
)

LONGEST_MESSAGE = 4096
"""Characters of a failure's message. The log has all of it."""
_KEPT = (
    *("step", "totalSteps", "progress", "metrics", "adapter", "checkpointTime", "best", "resumedFromStep", "record"),
    "gpuSeconds",
)
_PACE_STEPS = 20
"""How many of the newest steps tell the pace."""


class RunStatus:
    """Folds events into the status."""

    def __init__(self, job: LoRARLJob, attempt: int, now: Callable[[], datetime] | None = None) -> None:
        """`attempt` is the number that the operator gave this start of the job. Only tests set the clock."""
        self._job, self._attempt = job, attempt
        self._now = now or (lambda: datetime.now(UTC))
        self._status: dict[str, Any] = {}
        self._metrics: dict[str, Any] = {}
        cluster = job.spec.cluster
        self._gpu_time = GpuTime(cluster.gpus_per_node, cluster.nodes, job.spec.engine_gpus, self._now())
        self._pace = _Pace()
        self._shown_evaluation = next((name for name, _ in job.spec.data.evaluations), "")

    def on_event(self, event: Event) -> None:
        """Apply one event. Events that do not affect the status are ignored."""
        self._gpu_time.on_event(event, self._now())
        match event:
            case RecordOpened():
                self._status["record"] = event.uri
            case RunStarted():
                self._start(event)
            case WorkersLost() if "workers" in self._status:
                self._status["workers"] = self._status["workers"] | {
                    "lost": without_secrets(event.text)[:LONGEST_MESSAGE]
                }
            case MoreWorkers() if "workers" in self._status:  # which is news: progressDeadlineSeconds counts from it
                self._status["workers"] = self._status["workers"] | {
                    "growing": without_secrets(event.text)[:LONGEST_MESSAGE]
                }
            case EvalDone() if event.name == self._shown_evaluation:
                self._metrics["evalScore"] = _short(event.score if event.score is not None else event.loss)
            case StepDone():
                self._status |= _steps(event.step, event.total_steps)
                self._status |= self._pace.remaining(event.step, event.total_steps, self._now())
                self._metrics |= {
                    "reward": _short(event.metrics.get("reward_mean")),
                    "kl": _short(event.metrics.get("kl")),
                    "tokensPerSecond": round(event.tokens_per_second, 1),
                }
            case CheckpointDone():
                self._status["adapter"] = self._adapter(event)
                self._status["checkpointTime"] = event.published_at
            case BestFound():
                self._status["best"] = {
                    "uri": event.uri,
                    "step": event.step,
                    "metric": event.metric,
                    "value": float(f"{event.value:.4g}"),
                    **({"sha256": event.sha256} if event.sha256 else {}),
                }
            case RunFinished() if event.state != "succeeded":
                message = event.message or event.reason
                self._status["failure"] = failure(event.reason, message, self._attempt, self._now())

    def as_dict(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return the status to apply.

        Args:
            before: the status when the run began. A resumed run keeps every value that it has no newer one for, except
                a failure.
        """
        if "step" not in self._status:  # nothing is loaded yet, so there is no newer value
            kept = kept_before_start(before)
        elif "resumedFromStep" in self._status:
            kept = {
                key: before[key] for key in ("metrics", "adapter", "checkpointTime", "best", "record") if key in before
            }
        else:
            kept = {key: before[key] for key in ("record",) if key in before}
        known = {name: value for name, value in self._metrics.items() if value is not None}
        metrics = {"metrics": kept.get("metrics", {}) | known} if known else {}
        return kept | self._status | metrics | self._gpu_time.as_dict(before.get("gpuSeconds") or {})

    def _start(self, event: RunStarted) -> None:
        self._pace = _Pace()
        self._status |= _steps(event.resumed_from_step or 0, event.total_steps)
        if event.resumed_from_step is not None:
            self._status["resumedFromStep"] = event.resumed_from_step
        if event.pods:
            self._status["workers"] = {"attempt": self._attempt, "pods": list(event.pods)}

    def _adapter(self, event: CheckpointDone) -> dict[str, Any]:
        return {
            "uri": event.uri,
            "step": event.step,
            "version": event.version,
            "sha256": event.sha256,
            "baseModel": self._job.spec.model.uri,
            "rank": self._job.spec.adapter.rank,
            "publishedAt": event.published_at,
        }


class _Pace:
    """How fast steps follow each other, with their evaluations and checkpoints."""

    def __init__(self) -> None:
        """No step was seen yet."""
        self._ends: deque[tuple[int, datetime]] = deque(maxlen=_PACE_STEPS + 1)

    def remaining(self, step: int, last: int, now: datetime) -> dict[str, int]:
        """Return `estimatedRemainingSeconds` after a step; nothing after the first one, which also compiles kernels."""
        self._ends.append((step, now))
        (first, began), seen = self._ends[0], len(self._ends)
        if seen < 2 or step <= first:
            return {}
        each = (now - began).total_seconds() / (step - first)
        return {"estimatedRemainingSeconds": round(max(0, last - step) * max(0.0, each))}


def kept_before_start(before: dict[str, Any]) -> dict[str, Any]:
    """Return what stays of an earlier attempt's status while nothing is loaded yet: all but its failure."""
    return {key: before[key] for key in _KEPT if key in before}


def failure(reason: str, message: str, attempt: int, now: datetime) -> dict[str, Any]:
    """Return `status.failure`. Its time says which start of an attempt it belongs to, if a queue starts it again."""
    message = without_secrets(message)
    return {"reason": reason, "message": message[:LONGEST_MESSAGE], "attempt": attempt, "time": f"{now:%FT%TZ}"}


def _steps(done: int, total: int) -> dict[str, Any]:
    total = max(done, total)  # `trainer.steps` may be cut below what is done. No step follows then.
    return {"step": done, "totalSteps": total, "progress": f"{done}/{total}"}


def _short(value: float | None) -> float | None:
    """Round to four digits, because `kubectl get` shows all of them. None if not finite, which JSON cannot express."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
