"""What became of a schedule's jobs. The operator writes it, and users read it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.status import Condition, Moment, Reason

MAX_ACTIVE = 100
"""Unfinished jobs that a status names."""


class ActiveStatus(Model):
    """An unfinished job of the schedule."""

    name: str = Field(max_length=63, description="Its name.")
    uid: str = Field(max_length=64, description="Its uid.")


class LastAdapterStatus(Model):
    """The adapter of the newest successful job, from which the next one continues if spec.continueFrom says so."""

    job: str = Field(max_length=63, description="Name of the job.")
    time: Moment = Field(description="When the job ended.")
    uri: str = Field(max_length=2048, description="Folder of the adapter.")
    sha256: str | None = Field(
        None, max_length=64, pattern=r"^[0-9a-f]{64}$", description="Digest of its adapter_model.safetensors."
    )


class SkippedStatus(Model):
    """The newest scheduled time that was left out, alone or with those before it."""

    time: Moment = Field(description="The time for which there is no job.")
    count: int = Field(ge=1, description="How many times were left out together. 101 stands for more than 100.")
    reason: Reason = Field(description="Why, as one CamelCase word.")
    message: str = Field(max_length=2048, description="Why, for people.")


class LoRARLScheduleStatus(Model):
    """What became of the jobs."""

    phase: Literal["Scheduled", "Running", "Suspended", "Failed"] | None = Field(
        None,
        description="Scheduled: it waits for its next time. Running: a job is unfinished. Failed: the spec cannot be "
        "used.",
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
        description="metadata.generation that the status describes. -1: the operator has not seen the schedule.",
    )
    last_schedule_time: Moment | None = Field(
        None, description="The newest scheduled time for which a job was created."
    )
    last_successful_time: Moment | None = Field(None, description="When a job last succeeded.")
    next_schedule_time: Moment | None = Field(None, description="When the next job is due. Absent while suspended.")
    active: list[ActiveStatus] | None = Field(
        None,
        max_length=MAX_ACTIVE,
        description="The unfinished jobs.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    last_job: str | None = Field(None, max_length=63, description="The job of lastScheduleTime.")
    last_phase: str | None = Field(
        None, max_length=64, description="Its phase. Deleted: it was deleted before its end."
    )
    last_adapter: LastAdapterStatus | None = Field(None, description="The adapter of the newest successful job.")
    skipped: SkippedStatus | None = Field(None, description="The newest scheduled time that was left out.")
