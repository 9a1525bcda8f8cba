"""How much time a job has held its GPUs for, and how much of that its checkpoints keep."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lorarl_trainer.progress import (
    CheckpointDone,
    EvalDone,
    Event,
    MoreWorkers,
    RunFinished,
    RunStarted,
    StepDone,
    WorkersLost,
)


class GpuTime:
    """Folds events into `status.gpuSeconds`: seconds times the GPUs at that time. An evaluation counts to its step."""

    def __init__(self, per_node: int, nodes: int, engines: int, began: datetime) -> None:
        """Start to count.

        Args:
            per_node: GPUs of a node that trains; 0 for a CPU job, which has no such status.
            nodes: those that train, at most.
            engines: GPUs of separate engines.
            began: when the driver began.
        """
        self._per_node, self._engines = per_node, engines
        self._gpus = per_node * nodes + engines
        self._starts_since: datetime | None = began
        self._startup = self._useful = self._lost = 0.0
        self._unsaved: list[tuple[int, float]] = []
        self._saved = -1

    def on_event(self, event: Event, now: datetime) -> None:
        match event:
            case RunStarted():
                if event.pods:
                    self._gpus = self._per_node * len(event.pods) + self._engines
                self._start(now)
                if self._unsaved:  # by the workers before these
                    self._lose(after=event.resumed_from_step or 0)
            case WorkersLost() | MoreWorkers():
                self._starts_since = self._starts_since or now
            case StepDone():
                self._add(event.step, sum(event.seconds.values()))
            case EvalDone():
                self._add(event.step, event.seconds)
            case CheckpointDone():
                self._save(event.step)
            case RunFinished():
                self._start(now)
                self._lose(after=self._saved)

    def as_dict(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return the status: a sum over all attempts. Empty for a CPU job.

        Args:
            before: `status.gpuSeconds` when this attempt began. What no checkpoint kept by then is lost.
        """
        if not self._per_node:
            return {}
        unsaved = sum(seconds for _, seconds in self._unsaved)
        own = {"useful": self._useful, "lost": self._lost, "startup": self._startup, "unsaved": unsaved}
        added = {name: round(seconds) for name, seconds in own.items()}
        for name in ("useful", "lost", "startup"):
            added[name] += _number(before, name)
        added["lost"] += _number(before, "unsaved")
        return {"gpuSeconds": added}

    def _add(self, step: int, seconds: float) -> None:
        seconds *= self._gpus
        if step <= self._saved:  # an evaluation that came after its step's checkpoint
            self._useful += seconds
        else:
            self._unsaved.append((step, seconds))

    def _save(self, until: int) -> None:
        """Count the steps up to this one as useful."""
        self._saved = max(self._saved, until)
        self._useful += sum(seconds for step, seconds in self._unsaved if step <= until)
        self._unsaved = [(step, seconds) for step, seconds in self._unsaved if step > until]

    def _lose(self, after: int) -> None:
        """Count the steps after this one as lost, and those up to it as useful."""
        self._save(after)
        self._lost += sum(seconds for _, seconds in self._unsaved)
        self._unsaved = []

    def _start(self, now: datetime) -> None:
        """Count the time since the driver began, or since workers were lost."""
        if self._starts_since is not None:
            self._startup += self._gpus * max(0.0, (now - self._starts_since).total_seconds())
            self._starts_since = None


def _number(status: dict[str, Any], name: str) -> int:
    return int(status.get(name) or 0)
