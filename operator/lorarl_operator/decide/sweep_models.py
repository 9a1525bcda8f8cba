"""A sweep as it was observed, and what a decision about it does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.sweeps.manifest import checked_sweep, trials_of
from lorarl_api.sweeps.trials import Trial
from lorarl_api.v1alpha1 import API_VERSION, SWEEP_KIND, LoRARLSweepSpec
from lorarl_operator.decide.decision import Event, Manifest

LABEL_SWEEP = "lorarl.io/sweep"
"""On the job of a trial: name of its sweep."""
ANNOTATION_TRIAL = "lorarl.io/trial"
"""On the job of a trial: the values that are its own."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A LoRARLSweep.

    Attributes:
        queue_labels: Labels of Kueue, which the trials' jobs get too.
        spec: `spec` as compact JSON.
        status: `status` as compact JSON.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
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

    def checked(self) -> tuple[LoRARLSweepSpec, tuple[Trial, ...]]:
        """The valid spec and its trials.

        Raises:
            ManifestError: The spec is not valid.
        """
        found = _checked(self.name, self.spec)
        if isinstance(found, ManifestError):
            raise found
        return found


@lru_cache(maxsize=64)
def _checked(name: str, spec: bytes) -> tuple[LoRARLSweepSpec, tuple[Trial, ...]] | ManifestError:
    document = {"apiVersion": API_VERSION, "kind": SWEEP_KIND, "metadata": {"name": name}, "spec": json.loads(spec)}
    try:
        sweep = checked_sweep(document)
    except ManifestError as error:
        return error
    return sweep.spec, tuple(trials_of(name, sweep.spec))


@dataclass(frozen=True, slots=True)
class Make:
    """Create the job of a trial, unless it is there."""

    trial: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Try:
    """Ask whether the job of a trial is still refused, while no place is free for it. It is not created."""

    trial: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Suspend:
    """Set `spec.suspend` of a trial's job, if it is still the one with this uid."""

    trial: str
    uid: str
    suspend: bool


@dataclass(frozen=True, slots=True)
class DeleteSweep:
    """DELETE the sweep in the background, with its uid as precondition. Its jobs go with it."""


type SweepAction = Make | Try | Suspend | DeleteSweep


@dataclass(frozen=True, slots=True)
class SweepDecision:
    """What to do about a sweep: first the status, then its Events, then the actions.

    Attributes:
        status: The whole status; None if it is stored already.
        pressing: Whether the status says more than newer numbers, which can wait for some seconds.
        recheck_seconds: Look again after this time even if nothing happens.
    """

    status: dict[str, Any] | None = None
    pressing: bool = False
    events: tuple[Event, ...] = ()
    actions: tuple[SweepAction, ...] = ()
    recheck_seconds: float | None = None


def stored_trials(status: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the status says of each trial, by its name."""
    return {str(one["name"]): dict(one) for one in status.get("trials") or () if "name" in one}
