"""What a job reports about itself. The operator and the trainer write it, and users read it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.publish import TARGETS, TargetName

Moment = Annotated[AwareDatetime, Field(strict=False)]
"""A time with its zone. In YAML and JSON it is an RFC 3339 string."""
Reason = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]

MAX_PUBLISHED = 16
"""Entries of spec.publish that a status has, with those that were removed and are being withdrawn."""


class Condition(Model):
    """One condition, as Kubernetes' `metav1.Condition`."""

    type: str = Field(min_length=1, max_length=316, description="Name of the condition, in CamelCase.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether the condition holds.")
    observed_generation: int | None = Field(
        None, ge=0, description="metadata.generation for which the condition was set."
    )
    last_transition_time: Moment = Field(description="When status last changed.")
    reason: Reason = Field(description="Why it last changed, as one CamelCase word.")
    message: str = Field(max_length=32_768, description="Why it last changed, for people.")


class MetricsStatus(Model):
    """The newest metrics."""

    reward: float | None = Field(None, description="Mean reward of the newest step's completions.")
    eval_score: float | None = Field(
        None,
        description="Newest score, or for sft loss, of data.eval, or else of the first of data.evals.",
    )
    kl: float | None = Field(
        None, description="Mean KL divergence to the base model, in nats per token, if klCoefficient is above 0."
    )
    tokens_per_second: float | None = Field(
        None, description="Tokens generated and trained on per second, in the newest step."
    )


class AdapterStatus(Model):
    """The newest published adapter."""

    uri: str = Field(max_length=2048, description="Folder with adapter_config.json and adapter_model.safetensors.")
    step: int = Field(ge=0, description="Step after which it was written.")
    version: int = Field(
        ge=0,
        description="Version of the adapter, as in the samples: 1 before the first step, and one more after each step.",
    )
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="Digest of adapter_model.safetensors.")
    base_model: str | None = Field(None, max_length=1024, description="URI of its base model.")
    rank: int | None = Field(None, ge=1, description="Rank r.")
    published_at: Moment | None = Field(None, description="When it was complete in the store.")


class BestStatus(Model):
    """The best checkpoint so far, by checkpoint.keepBest."""

    uri: str = Field(max_length=2048, description="Folder of its adapter.")
    step: int = Field(ge=0, description="Step after which it was written.")
    metric: str = Field(max_length=128, description="Column of metrics.jsonl that it was chosen by.")
    value: float = Field(description="Its value there.")
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$", description="Digest of its adapter_model.safetensors.")


class PublishedVersion(Model):
    """A version of the adapter that passed the gate."""

    model: str = Field(max_length=63, description="Its name as a model: what a request names.")
    step: int = Field(ge=0, description="Step after which it was written.")
    uri: str = Field(max_length=2048, description="Folder of the adapter.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Digest of its adapter_model.safetensors.")
    metric: str = Field(max_length=128, description="Column of metrics.jsonl that the gate compared.")
    value: float = Field(description="Its value there, as the training reported it.")


class PublishedStatus(Model):
    """What became of one entry of spec.publish."""

    name: str = Field(max_length=40, description="Name of the entry.")
    targets: list[TargetName] = Field(
        default_factory=list,
        max_length=len(TARGETS),
        description="Servers that may have versions of it: its own, and after a change those before. Empty: aibrix.",
    )
    state: Literal["Waiting", "Serving", "HeldBack", "Failed", "Withdrawing"] = Field(
        description="Serving: the wanted version answers. Waiting: it will by itself. HeldBack: the gate keeps it from "
        "users. Failed: a person has to fix something; it is tried again all the time. Withdrawing: the entry was "
        "removed."
    )
    reason: Reason = Field(description="Why, as one CamelCase word.")
    message: str = Field(max_length=4096, description="Why, and what to do, for people.")
    since: Moment = Field(description="Since when state, reason and version are these.")
    version: PublishedVersion | None = Field(None, description="The version that is to be served.")
    serving: str | None = Field(
        None, max_length=63, description="The model that answers now: while its successor loads, the one before."
    )
    versions: list[PublishedVersion] = Field(
        default_factory=list,
        max_length=10,
        description="The last versions that were served, the newest last. spec.publish[].step chooses among them.",
    )


class GpuSecondsStatus(Model):
    """What the training reports that the GPUs were used for: seconds times their number, over all attempts."""

    useful: int = Field(ge=0, description="Steps and evaluations that a checkpoint keeps.")
    lost: int = Field(ge=0, description="Steps and evaluations that ended attempts made after their last checkpoint.")
    startup: int = Field(
        ge=0, description="From the start of each attempt's driver, or the loss of workers, to the first step."
    )
    unsaved: int = Field(
        ge=0, description="Steps and evaluations since the newest checkpoint. The next one makes them useful."
    )


class FailureStatus(Model):
    """Why the newest attempt failed."""

    reason: Reason = Field(description="One CamelCase word, for programs.")
    message: str = Field(max_length=32_768, description="What happened and what to do, for people.")
    attempt: int | None = Field(
        None, ge=1, description="The attempt that failed: the number at the end of its RayJob's name."
    )
    time: Moment | None = Field(None, description="When it failed.")


class WorkersStatus(Model):
    """The worker pods of the newest attempt that trained."""

    attempt: int = Field(ge=1, description="Number of the attempt.")
    pods: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list, max_length=4096, description="Names of the worker pods that train, or last did."
    )
    lost: str | None = Field(
        None, max_length=32_768, description="Why the training waits for other worker pods. Absent while it trains."
    )
    growing: str | None = Field(
        None, max_length=32_768, description="Why all workers start again, with more pods. Absent while they train."
    )


class PolicyDriftStatus(Model):
    """The newest attempt that ended with PolicyDrift."""

    step: int = Field(ge=0, description="Steps done when it ended.")
    nodes: list[Annotated[str, Field(max_length=253)]] = Field(
        default_factory=list,
        max_length=1024,
        description="Nodes of its workers. If attempts before it ended after the same step: those that each of them "
        "had. When none is left, the nodes are not at fault, and the job fails.",
    )


class DrainStatus(Model):
    """The drain of a node for which the training was asked for a checkpoint (cluster.disruption: AfterCheckpoint)."""

    since: Moment = Field(description="When the training was asked.")
    step: int = Field(ge=0, description="Steps that were done then, which the checkpoint must keep.")
    released: Moment | None = Field(None, description="Since when the pods may be evicted. Absent while that waits.")


class FaultyNodeStatus(Model):
    """A node whose fault ended attempts of the job."""

    name: str = Field(max_length=253, description="Name of the node.")
    attempts: int = Field(ge=1, description="Attempts that it ended. After the second, no attempt uses it for a day.")
    reason: Reason = Field(description="Why it ended the last of them, as one CamelCase word.")
    last_time: Moment = Field(description="When it ended the last of them.")


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
    observed_generation: int | None = Field(
        None, ge=-1, description="metadata.generation that the status describes. -1: the operator has not seen the job."
    )
    step: int | None = Field(None, ge=0, description="Steps done.")
    total_steps: int | None = Field(
        None, ge=1, description="Total steps: spec.trainer.steps as the training last read it."
    )
    progress: str | None = Field(None, max_length=32, description="Steps done of all steps, for printing: 12/200.")
    nodes: int | None = Field(
        None,
        ge=0,
        description="Machines that the newest attempt trains on, or asks for until it trains: from cluster.minNodes to "
        "cluster.nodes.",
    )
    requested_nodes: int | None = Field(
        None,
        ge=0,
        description="Machines that the newest attempt asks its queue for, because the queue did not admit more. Absent "
        "when it has run, and if it asks for all.",
    )
    gpus: int | None = Field(
        None, ge=0, description="GPUs of the newest attempt: of its workers and its separate engines."
    )
    metrics: MetricsStatus | None = Field(None, description="The newest metrics.")
    adapter: AdapterStatus | None = Field(None, description="The newest published adapter.")
    checkpoint_time: Moment | None = Field(
        None, description="When the newest checkpoint was complete in the store. What came after it would be repeated."
    )
    estimated_remaining_seconds: int | None = Field(
        None, ge=0, description="Seconds until the last step, by the newest steps. Waiting times are not in it."
    )
    best: BestStatus | None = Field(None, description="The best checkpoint so far, by checkpoint.keepBest.")
    published: list[PublishedStatus] | None = Field(
        None, max_length=MAX_PUBLISHED, description="What became of each entry of spec.publish."
    )
    workers: WorkersStatus | None = Field(None, description="The worker pods of the newest attempt that trained.")
    record: str | None = Field(
        None,
        max_length=2048,
        description="Folder of the newest attempt's record in the checkpoints' store: curves, samples, logs, report.",
    )
    gpu_seconds: GpuSecondsStatus | None = Field(
        None, description="What the training reports that the GPUs were used for, in seconds times their number."
    )
    held_gpu_seconds: int | None = Field(
        None,
        ge=0,
        description="Seconds for which ended attempts have held their GPUs, times their number. The operator counts "
        "from the placement of their first worker pod.",
    )
    gpus_held_since: Moment | None = Field(None, description="Since when the present attempt holds its GPUs.")
    failure: FailureStatus | None = Field(None, description="Why the newest attempt failed.")
    policy_drift: PolicyDriftStatus | None = Field(None, description="The newest attempt that ended with PolicyDrift.")
    attempts: int | None = Field(None, ge=0, description="Attempts that failed because of the job itself.")
    preemptions: int | None = Field(
        None,
        ge=0,
        description="Evictions, preemptions and lost machines. Each ended an attempt, or is one of the recoveries, or "
        "one of the restarts in place.",
    )
    recoveries: int | None = Field(
        None, ge=0, description="Losses of worker pods after which the same attempt continued with new ones."
    )
    restarts_in_place: int | None = Field(
        None,
        ge=0,
        description="How often the current attempt started again in its RayJob, which keeps its place in the queue.",
    )
    restarts: int | None = Field(None, ge=0, description="Sum of attempts and preemptions, for printing.")
    preemptions_without_progress: int | None = Field(
        None, ge=0, description="Preemptions in a row that got no further than furthestStep."
    )
    furthest_step: int | None = Field(None, ge=0, description="The most steps that were done at a preemption.")
    faulty_nodes: list[FaultyNodeStatus] | None = Field(
        None, max_length=16, description="Nodes whose fault ended attempts of the job."
    )
    resumed_from_step: int | None = Field(
        None, ge=0, description="Step of the checkpoint from which the newest attempt resumed."
    )
    ray_job_name: str | None = Field(None, max_length=253, description="RayJob of the newest attempt.")
    trainer_image: str | None = Field(
        None,
        max_length=1100,
        description="Trainer image of the newest attempt that ran, with its digest if it was pulled. Further attempts "
        "keep it, also after an upgrade of the operator, unless cluster.image changes.",
    )
    dashboard_url: str | None = Field(
        None, max_length=2048, alias="dashboardURL", description="Ray's dashboard of the newest attempt."
    )
    start_time: Moment | None = Field(
        None, description="When the first attempt since the job's creation or last resumption started."
    )
    attempt_end_time: Moment | None = Field(
        None, description="When the newest attempt that ended did so. The delay before the next one counts from it."
    )
    waiting_since: Moment | None = Field(
        None,
        description="Since when the next attempt cannot be created for the reason of the condition Running. "
        "startDeadlineSeconds counts from it.",
    )
    recovering_since: Moment | None = Field(
        None,
        description="Since when the attempt waits for lost worker pods to be replaced. "
        "The operator's LORARL_RECOVERY_SECONDS counts from it.",
    )
    drain: DrainStatus | None = Field(
        None, description="The drain of a node with pods of the job, if their eviction waits for a checkpoint."
    )
    completion_time: Moment | None = Field(None, description="When the job ended.")
