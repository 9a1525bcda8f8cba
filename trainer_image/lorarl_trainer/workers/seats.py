"""A trial's side of a shared worker: what passes a worker's calls on with the trial's name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.workers.engines import BESIDE

ASIDE = "aside"
"""The shared worker's threads for what needs no model."""
_ASIDE = frozenset(
    {
        *("claim_checkpoints", "complete", "compare", "best", "uploads", "published", "drain_uploads", "finish"),
        *("startup_spans", "drain_asked", "pod"),
    }
)
"""Methods of a worker that need no model: they do not wait for the turns of other trials."""


@dataclass(frozen=True)
class Seat:
    """Stands for the worker of a trial where Ray's handle of an actor is expected.

    Attributes:
        actor: Ray's handle of the `SharedWorker`.
        trial: its name.
        spec: its own.
        process_id: the one that ends with the trial: this one, the trial's driver.
    """

    actor: Any
    trial: str
    spec: LoRARLJobSpec
    process_id: int = field(default_factory=os.getpid)

    def __getattr__(self, method: str) -> _Method:
        if method.startswith("_"):  # of Python's own protocols
            raise AttributeError(method)
        return _Method(self._call_of(method))

    def _call_of(self, method: str) -> Callable[..., Any]:
        actor, trial = self.actor, self.trial
        if method in _ASIDE:
            aside = actor.aside.options(concurrency_group=ASIDE)
            return lambda *arguments: aside.remote(trial, method, *arguments)
        if method in ("process", "memory"):
            return lambda: getattr(actor, method).remote()
        if method == "start":
            return lambda *arguments: actor.start.remote(trial, self.process_id, self.spec, *arguments)
        if method == "submit":
            submit = actor.submit.options(concurrency_group=BESIDE)
            return lambda *arguments: submit.remote(trial, *arguments)
        if method in ("open_checkpoints", "sync", "results"):
            return lambda *arguments: getattr(actor, method).remote(trial, *arguments)
        return lambda *arguments: actor.turn.remote(trial, method, *arguments)


@dataclass(frozen=True)
class _Method:
    """Stands for a method of Ray's handle."""

    remote: Callable[..., Any]

    def options(self, **_: Any) -> _Method:
        """Return the method itself: which thread it has is decided here."""
        return self
