"""How much time a job has held its GPUs for, and how much of that its checkpoints keep."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lorarl_trainer.progress import CheckpointDone, EvalDone, Event, RunFinished, RunStarted, StepDone


class GpuTime:
    """Folds events into `status.gpuSeconds`. An evaluation counts to its step."""

    def __init__(self, gpus: int, began: datetime) -> None:
        """Start to count.

        Args:
            gpus: those of an attempt; 0 for a CPU job, which has no such status.
            began: when this attempt's driver began.
        """
        self._gpus, self._began = gpus, began
        self._startup = self._useful = self._lost = 0.0
        self._unsaved: list[tuple[int, float]] = []
        self._saved = -1
        self._started = False

    def on_event(self, event: Event, now: datetime) -> None:
        """Count an event."""
        match event:
            case RunStarted():
                self._start(now)
            case StepDone():
                self._add(event.step, sum(event.seconds.values()))
            case EvalDone():
                self._add(event.step, event.seconds)
            case CheckpointDone():
                self._saved = event.step
                self._useful += sum(seconds for step, seconds in self._unsaved if step <= event.step)
                self._unsaved = [(step, seconds) for step, seconds in self._unsaved if step > event.step]
            case RunFinished():
                self._start(now)
                self._lost += sum(seconds for _, seconds in self._unsaved)
                self._unsaved = []

    def as_dict(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return the status: a sum over all attempts. Empty for a CPU job.

        Args:
            before: `status.gpuSeconds` when this attempt began. What no checkpoint kept by then is lost.
        """
        if not self._gpus:
            return {}
        unsaved = sum(seconds for _, seconds in self._unsaved)
        own = {"useful": self._useful, "lost": self._lost, "startup": self._startup, "unsaved": unsaved}
        added = {name: round(self._gpus * seconds) for name, seconds in own.items()}
        for name in ("useful", "lost", "startup"):
            added[name] += _number(before, name)
        added["lost"] += _number(before, "unsaved")
        return {"gpuSeconds": added}

    def _add(self, step: int, seconds: float) -> None:
        if step <= self._saved:  # an evaluation that came after its step's checkpoint
            self._useful += seconds
        else:
            self._unsaved.append((step, seconds))

    def _start(self, now: datetime) -> None:
        if not self._started:
            self._started = True
            self._startup = max(0.0, (now - self._began).total_seconds())


def _number(status: dict[str, Any], name: str) -> int:
    return int(status.get(name) or 0)
