"""What became of a sweep's trials. The operator writes it, and users read it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.status import Condition, Moment, Reason

MAX_POINTS = 64
"""Values of a trial that early stopping compares. Of more, every second older one goes."""
MAX_RUNGS = 32
"""More than a trial of the most steps can have: each has twice the steps of the one before."""


TrialPhase = Literal[
    "Waiting",
    "Refused",
    "Pending",
    "Starting",
    "Running",
    "Suspending",
    "Suspended",
    "Restarting",
    "Succeeded",
    "Failed",
    "Stopping",
    "Stopped",
    "Deleted",
]


class CurvePoint(Model):
    """A value of the objective, and when it was seen."""

    step: int = Field(ge=0, description="Steps that the trial had done.")
    value: float = Field(description="The value then.")


class RungStatus(CurvePoint):
    """What a trial had at a rung of successive halving."""

    promoted: bool = Field(description="Whether it continues from there.")


class StoppedStatus(Model):
    """Why a trial was stopped: by the median of others, or by its rank at a rung."""

    step: int = Field(ge=0, description="Step after which it was compared.")
    value: float = Field(description="median: its best value until then. halving: its value at the rung.")
    median: float | None = Field(None, description="median: that of the others at that step.")
    others: int | None = Field(None, ge=1, description="median: how many others that were.")
    rank: int | None = Field(None, ge=1, description="halving: of its value at the rung, 1 for the best.")
    reached: int | None = Field(None, ge=1, description="halving: how many trials have a value there.")
    most: int | None = Field(None, ge=1, description="halving: how many continue at most, of these and of later ones.")


class TrialStatus(Model):
    """What became of one trial."""

    name: str = Field(max_length=63, description="Name of its job.")
    label: str = Field(max_length=1024, description="The values that are its own.")
    phase: TrialPhase = Field(
        description="Waiting: it has no job yet. Refused: it cannot have one. Stopping, Stopped: early stopping ended "
        "it. Deleted: its job was deleted before its end. The others are those of its job."
    )
    reason: Reason | None = Field(None, description="Why it waits, was refused or failed, as one CamelCase word.")
    message: str | None = Field(None, max_length=2048, description="Why, and what to do, for people.")
    uid: str | None = Field(None, max_length=64, description="uid of its job. A trial with one is never made again.")
    step: int | None = Field(None, ge=0, description="Steps done.")
    value: float | None = Field(None, description="Its value of the objective.")
    uri: str | None = Field(None, max_length=2048, description="Folder of the adapter with that value.")
    sha256: str | None = Field(
        None, max_length=64, pattern=r"^[0-9a-f]{64}$", description="Digest of its adapter_model.safetensors."
    )
    suspended: bool | None = Field(None, description="Whether the sweep has suspended its job.")
    stopped: StoppedStatus | None = Field(None, description="Why early stopping ended it.")
    points: list[CurvePoint] | None = Field(
        None, max_length=MAX_POINTS, description="Values that early stopping compares, by their steps."
    )
    rungs: list[RungStatus] | None = Field(
        None,
        max_length=MAX_RUNGS,
        description="Rungs of successive halving that it has reached, with its values there.",
    )


class BestTrialStatus(Model):
    """The best trial so far, by spec.objective."""

    name: str = Field(max_length=63, description="Name of its job.")
    label: str = Field(max_length=1024, description="The values that are its own.")
    value: float = Field(description="Its value of the objective.")
    step: int | None = Field(None, ge=0, description="Steps that the trial has done.")
    uri: str | None = Field(None, max_length=2048, description="Folder of its adapter.")
    sha256: str | None = Field(
        None, max_length=64, pattern=r"^[0-9a-f]{64}$", description="Digest of its adapter_model.safetensors."
    )
    equal: list[Annotated[str, Field(max_length=63)]] | None = Field(
        None,
        max_length=100,
        description="Names of the trials with the same value. Of equal trials, the first of the sweep is named.",
    )


class LoRARLSweepStatus(Model):
    """What became of the trials."""

    phase: Literal["Pending", "Running", "Suspending", "Suspended", "Succeeded", "Failed"] | None = Field(
        None,
        description="Succeeded: each trial has ended, and one at least succeeded. Failed: none did, or the spec cannot "
        "be used.",
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=8,
        description="Conditions, one of each type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: int | None = Field(
        None,
        ge=-1,
        description="metadata.generation that the status describes. -1: the operator has not seen the sweep.",
    )
    total: int | None = Field(None, ge=0, description="Trials.")
    active: int | None = Field(None, ge=0, description="Trials whose job is unfinished, and not stopped.")
    finished: int | None = Field(None, ge=0, description="Trials that have ended, for any reason.")
    succeeded: int | None = Field(None, ge=0, description="Trials that have succeeded.")
    failed: int | None = Field(None, ge=0, description="Trials that failed, were refused, or whose job was deleted.")
    stopped: int | None = Field(None, ge=0, description="Trials that early stopping ended.")
    best: BestTrialStatus | None = Field(None, description="The best trial so far, by spec.objective.")
    trials: list[TrialStatus] | None = Field(
        None,
        max_length=100,
        description="What became of each trial.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    completion_time: Moment | None = Field(None, description="When the last trial ended.")
