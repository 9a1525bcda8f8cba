"""How it runs: rollouts, training, checkpoints, trackers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, SecretName, Uri, uri_rules


class RolloutSpec(Model):
    """How vLLM generates."""

    prompts_per_step: int = Field(64, ge=1, le=65_536, description="Prompts a step; for sft, rows a step.")
    max_prompt_tokens: int = Field(
        512, ge=1, le=1_000_000, description="Rows whose prompt has more tokens are left out, and counted."
    )
    max_response_tokens: int = Field(
        1024, ge=1, le=1_000_000, description="Most tokens a completion may have; for sft, longer answers are left out."
    )
    temperature: float = Field(
        1.0,
        ge=0.01,
        le=10.0,
        description="Sampling temperature. Log-probabilities are taken at the same temperature by vLLM and the trainer.",
    )
    adapter_sync: Literal["tensor", "disk"] = Field(
        "tensor",
        description="How a new adapter reaches vLLM. tensor: in memory, within the process. disk: through files in shared memory.",
    )
    verify_sync: bool = Field(
        False,
        description="After every sync compare all that vLLM holds of the adapter with what the trainer exports, bit by bit, and stop where "
        "they differ. For finding faults: it takes longer than the sync.",
    )
    offload: list[Literal["kv_cache", "weights"]] | None = Field(
        None,
        max_length=2,
        description="What vLLM gives up of its GPU memory while the trainer works: nothing ([]), the KV cache, or also the weights that it "
        "does not share with the trainer. When absent the KV cache where memory is short, and otherwise nothing. GPU jobs alone.",
        examples=[["kv_cache"]],
    )
    logprob_tolerance: float | None = Field(
        None,
        gt=0.0,
        le=10.0,
        description="grpo: largest mean absolute difference, in nats, between vLLM's and the trainer's log-probabilities of a step's "
        "tokens; past it the run stops. When absent 1e-5 in fp32 and 0.05 in bf16.",
        examples=[0.05],
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that one vLLM engine is split over; 1 on CPU jobs."
    )
    gpu_memory_fraction: float = Field(
        0.5,
        gt=0.0,
        lt=1.0,
        description="Share of a GPU's memory that vLLM may take. CPU jobs take what the longest batch needs.",
    )


class TrainerSpec(Model):
    """How Megatron trains."""

    steps: int = Field(200, ge=1, le=10_000_000, description="Training steps. May be changed until the job has ended.")
    learning_rate: float = Field(
        1.0e-5,
        gt=0.0,
        le=1.0,
        description="Peak learning rate of AdamW. LoRA wants about ten times that of full training.",
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Steps over which the learning rate rises linearly from zero; constant afterwards.",
    )
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(
        1.0, gt=0.0, le=1e6, description="The gradient's norm over all adapter parameters is clipped to this."
    )
    tokens_per_micro_batch: int = Field(
        16_384,
        ge=1,
        le=100_000_000,
        description="Most tokens, padding included, in one forward and backward pass of one worker.",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="What the backward pass computes again instead of keeping it in memory. none: nothing, the fastest. selective: each "
        "layer's MLP, about two thirds of the memory. full: whole layers, of which only the inputs are kept. Set it where a job does "
        "not fit with fewer tokensPerMicroBatch.",
        examples=["selective"],
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="Workers that one copy of the trainer's model is split over."
    )
    precision: Literal["fp32", "bf16"] | None = Field(
        None,
        description="Precision of model and adapter; the optimizer keeps fp32. fp32 on CPU and bf16 on GPU when absent.",
        examples=["bf16"],
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the new adapter, the order of the data and the sampling. Same seed, same adapter.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "warmupSteps",
            "self.warmupSteps <= self.steps",
            "warmupSteps of at most trainer.steps",
            "lower warmupSteps, or train for more steps",
        ),
    )


class CheckpointSpec(Model):
    """Where adapters and the training state go, and how a run goes on."""

    uri: Uri = Field(
        description="Folder under which the job's checkpoints are kept, in URI/NAME-OF-THE-JOB/: s3://, gs://, az://, file:///FOLDER or "
        "file:FOLDER.",
        examples=["s3://team/adapters"],
    )
    every: int = Field(10, ge=1, le=100_000, description="Steps between checkpoints. The last step has one too.")
    keep: int = Field(3, ge=1, le=1000, description="Newest checkpoints that are kept; older ones are deleted.")
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with the store's keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...).",
    )
    resume: Literal["Auto", "Never"] = Field(
        "Auto",
        description="Auto: go on from the newest whole checkpoint of the same training. Never: start anew; older checkpoints are deleted "
        "once the new run publishes its first.",
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        "Retain",
        description="What becomes of the checkpoints when the job is deleted from the cluster. Retain: they stay. Delete: they are deleted "
        "with it, adapters included. May be changed at any time.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", ["s3", "gs", "az", "file"]),
        Rule(
            "deletionPolicy",
            "self.deletionPolicy == 'Retain' || !self.uri.startsWith('file:')",
            "deletionPolicy Delete only where checkpoints go to a store: files of a pod are out of reach once it is gone",
            "set deletionPolicy: Retain, or write to s3://, gs:// or az://",
        ),
    )


class WandbSpec(Model):
    """Weights & Biases."""

    project: str = Field(
        min_length=1, max_length=128, description="Project that the run is logged to.", examples=["lora-rl"]
    )
    entity: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Team or user; the account's default when absent.",
        examples=["research"],
    )
    credentials_secret: SecretName | None = Field(None, description="Name of a Secret with WANDB_API_KEY.")


class MlflowSpec(Model):
    """MLflow."""

    tracking_uri: Uri = Field(
        description="Tracking server (http:// or https://), or file:FOLDER.", examples=["https://mlflow.example.com"]
    )
    experiment: str = Field(
        min_length=1, max_length=256, description="Experiment that the run is logged to.", examples=["gsm8k"]
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with MLFLOW_TRACKING_TOKEN, or with MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.",
    )

    rules: ClassVar[tuple[Rule, ...]] = uri_rules("trackingUri", ["https", "file"])


class TrackingSpec(Model):
    """Where metrics go besides metrics.jsonl and TensorBoard."""

    wandb: WandbSpec | None = Field(None, description="Log to Weights & Biases.")
    mlflow: MlflowSpec | None = Field(None, description="Log to MLflow.")
