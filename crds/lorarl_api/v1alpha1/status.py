"""What a job reports about itself. Users read it; the operator and the trainer write it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from lorarl_api.v1alpha1.common import Model

Moment = Annotated[AwareDatetime, Field(strict=False)]
"""A time with its zone; in YAML and JSON a text as RFC 3339 has it."""
Reason = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]


class Condition(Model):
    """One condition, as `metav1.Condition` of Kubernetes."""

    type: str = Field(min_length=1, max_length=316, description="Name of the condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    observed_generation: int | None = Field(
        None, ge=0, description="metadata.generation that the condition was set for."
    )
    last_transition_time: Moment = Field(description="When status last changed.")
    reason: Reason = Field(description="Why it last changed, in one CamelCase word.")
    message: str = Field(max_length=32_768, description="Why it last changed, for people.")


class MetricsStatus(Model):
    """The newest metrics."""

    reward: float | None = Field(None, description="Mean reward of the newest step's completions.")
    eval_score: float | None = Field(
        None, description="Score of the newest held-out evaluation: mean reward (grpo) or loss (sft)."
    )
    kl: float | None = Field(
        None, description="Mean KL divergence to the base model, in nats a token, where klCoefficient asks for it."
    )
    tokens_per_second: float | None = Field(
        None, description="Generated and trained tokens a second of the newest step."
    )


class AdapterStatus(Model):
    """The newest adapter that was published."""

    uri: str = Field(max_length=2048, description="Folder with adapter_config.json and adapter_model.safetensors.")
    step: int = Field(ge=0, description="Step after which it was written.")
    version: int = Field(
        ge=0,
        description="Version of the adapter as the samples carry it: 1 before the first step, one more after each.",
    )
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="Digest of adapter_model.safetensors.")
    base_model: str | None = Field(None, max_length=1024, description="URI of the base model that it belongs to.")
    rank: int | None = Field(None, ge=1, description="Rank r.")
    published_at: Moment | None = Field(None, description="When it was whole in the store.")


class FailureStatus(Model):
    """Why the newest attempt failed."""

    reason: Reason = Field(description="One CamelCase word for programs.")
    message: str = Field(max_length=32_768, description="What happened and what to do, for people.")
    attempt: int | None = Field(
        None, ge=1, description="The attempt that failed: the number at the end of its RayJob's name."
    )


class LoRARLJobStatus(Model):
    """What is known about the job."""

    phase: (
        Literal["Pending", "Starting", "Running", "Suspending", "Suspended", "Restarting", "Succeeded", "Failed"] | None
    ) = Field(None, description="The conditions in one word, for printing.")
    conditions: list[Condition] = Field(
        default_factory=list,
        max_length=32,
        description="Conditions, one of each type.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    observed_generation: int | None = Field(None, ge=0, description="metadata.generation that the status speaks of.")
    step: int | None = Field(None, ge=0, description="Steps done.")
    total_steps: int | None = Field(
        None, ge=1, description="Steps to do in all: spec.trainer.steps as the training last read it."
    )
    metrics: MetricsStatus | None = Field(None, description="The newest metrics.")
    adapter: AdapterStatus | None = Field(None, description="The newest adapter that was published.")
    failure: FailureStatus | None = Field(None, description="Why the newest attempt failed.")
    attempts: int | None = Field(None, ge=0, description="Attempts that failed by the job's own fault.")
    preemptions: int | None = Field(
        None, ge=0, description="Attempts that were evicted, preempted or lost with a machine."
    )
    restarts: int | None = Field(None, ge=0, description="attempts and preemptions together, for printing.")
    resumed_from_step: int | None = Field(
        None, ge=0, description="Step of the checkpoint that the newest attempt went on from."
    )
    ray_job_name: str | None = Field(None, max_length=253, description="RayJob of the newest attempt.")
    dashboard_url: str | None = Field(
        None, max_length=2048, alias="dashboardURL", description="Ray's dashboard of the newest attempt."
    )
    start_time: Moment | None = Field(
        None, description="When the first attempt started since the job was made or last resumed."
    )
    completion_time: Moment | None = Field(None, description="When the job ended.")
