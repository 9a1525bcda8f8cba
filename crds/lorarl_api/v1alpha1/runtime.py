"""Training, checkpoints and trackers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import MAX_SECONDS, EvalName, Model, SecretName, Uri, uri_rules
from lorarl_api.v1alpha1.stores import WRITABLE


class TrainerSpec(Model):
    """How the adapter is trained."""

    backend: Literal["megatron", "fsdp"] | None = Field(
        None,
        description="What trains. megatron: Megatron-LM, whose fused layers are the faster ones. fsdp: Transformers "
        "with PEFT, for more families of models. Default: megatron for the models that it trains, otherwise fsdp.",
        examples=["fsdp"],
    )
    steps: int = Field(200, ge=1, le=10_000_000, description="Training steps. May be changed until the job ends.")
    learning_rate: float = Field(
        1.0e-5,
        gt=0.0,
        le=1.0,
        description="Peak learning rate of AdamW. LoRA needs about ten times that of full fine-tuning.",
    )
    warmup_steps: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="Steps over which the learning rate rises linearly from zero. learningRateSchedule says what "
        "follows.",
    )
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="The learning rate after warmupSteps. constant: the peak. linear and cosine: it falls from the "
        "peak to minLearningRateShare of it at the last step. A change of trainer.steps stretches the schedule.",
    )
    min_learning_rate_share: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="The learning rate of the last step, as a share of the peak, if learningRateSchedule is linear or "
        "cosine.",
    )
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW's decoupled weight decay.")
    beta1: float = Field(0.9, ge=0.0, lt=1.0, description="AdamW's decay of the running average of the gradient.")
    beta2: float = Field(
        0.999, ge=0.0, lt=1.0, description="AdamW's decay of the running average of the gradient's square."
    )
    epsilon: float = Field(
        1e-8, gt=0.0, le=1.0, description="What AdamW adds to the denominator of its update, for numerical stability."
    )
    max_grad_norm: float = Field(
        1.0,
        gt=0.0,
        le=1e6,
        description="Largest norm of the gradient over all adapter parameters. A larger gradient is clipped.",
    )
    tokens_per_micro_batch: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="Largest number of tokens, with padding, in one forward and backward pass of one copy of the "
        "model: contextParallelSize workers share them. Default "
        "on GPU: chosen for the fastest step that fits. On CPU a power of two from 128 to 16384 whose activations take "
        "at most 2 GiB, or less where less memory is free. The start of a run prints it.",
        examples=[16_384],
    )
    recompute: Literal["none", "selective", "full"] | None = Field(
        None,
        description="What the backward pass recomputes instead of storing it. none: nothing, the fastest. selective: "
        "each layer's MLP, about two thirds of the memory. full: whole layers, of which only the inputs are stored. "
        "Default: chosen for the fastest step that fits; none on CPU.",
        examples=["selective"],
    )
    router_replay: bool | None = Field(
        None,
        description="For mixtures of experts: the trainer sends each token to the experts that the rollout sent it to "
        "(R3, arXiv:2510.11370), so that both compute the same function. false: it only measures how often its own "
        "router would choose others (routing_changed). Default: true.",
        examples=[False],
    )
    tensor_parallel_size: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Workers that one copy of the trainer's model is split over. Default: the smallest number of a "
        "machine's GPUs with which the job fits; 1 on CPU.",
        examples=[2],
    )
    context_parallel_size: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Workers that share the tokens of each micro-batch, for prompts and answers whose activations are "
        "too large for one. With tensorParallelSize, so many groups of workers. Only for trainer.backend megatron. "
        "Default: for dense models with sequences of 16384 tokens or more on GPUs, the divisor of a machine's GPUs "
        "with the fastest step that fits; otherwise 1.",
        examples=[2],
    )
    expert_parallel_size: int | None = Field(
        None,
        ge=1,
        le=64,
        description="For mixtures of experts: workers that share the experts of each layer. Each trains some of them, "
        "with the tokens of all of these workers, and its own samples with all other layers. Default: 1.",
        examples=[2],
    )
    precision: Literal["fp32", "bf16"] | None = Field(
        None,
        description="Precision of model and adapter. The optimizer always uses fp32. Default: fp32 on CPU and bf16 "
        "on GPU.",
        examples=["bf16"],
    )
    seed: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="Seed of the new adapter, the order of the data and the sampling. On a CPU, the same seed gives "
        "the same adapter, byte for byte. On a GPU it does not: attention's backward pass adds up in no fixed order.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "warmupSteps",
            "self.warmupSteps <= self.steps",
            "be at most trainer.steps",
            "Lower warmupSteps, or raise trainer.steps.",
        ),
        Rule(
            "minLearningRateShare",
            "self.minLearningRateShare == 0.0 || self.learningRateSchedule != 'constant'",
            "be 0, the default, if learningRateSchedule is constant",
            "Remove minLearningRateShare, or set learningRateSchedule: cosine.",
        ),
    )


class KeepBestSpec(Model):
    """By which evaluation the best checkpoint is chosen."""

    eval: EvalName | None = Field(None, description="Name of an evaluation of data.evals. Default: data.eval.")
    pass_at_k: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Choose by the evaluation's pass@k with this k. Default: by its score, for sft by its loss.",
        examples=[4],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "passAtK",
            "!has(self.passAtK) || has(self.eval)",
            "not be set unless eval names an evaluation of data.evals",
            "Add eval, or remove passAtK.",
        ),
    )


class CheckpointSpec(Model):
    """Where adapters and the training state are stored, and how a run resumes."""

    uri: Uri = Field(
        description="Folder of the checkpoints: s3://, gs://, az://; pvc://CLAIM/FOLDER, on a PersistentVolumeClaim "
        "that all pods can mount; file:///FOLDER or file:FOLDER. The job's checkpoints are in URI/NAME-OF-THE-JOB/.",
        examples=["s3://team/adapters"],
    )
    every: int = Field(10, ge=1, le=100_000, description="Steps between checkpoints. The last step has one too.")
    every_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Also after a step that ends at least so many seconds after the newest checkpoint. It bounds what "
        "an interruption costs, however long a step takes. Default: every alone decides.",
        examples=[600],
    )
    keep: int = Field(3, ge=1, le=1000, description="Number of newest checkpoints to keep. Older ones are deleted.")
    keep_all: bool = Field(False, description="Keep all checkpoints.")
    keep_best: KeepBestSpec | None = Field(
        None,
        description="Keep the best checkpoint besides the newest ones; latest.json names it. Then each step with this "
        "evaluation has a checkpoint too. Default: the best one is not known.",
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with the store's keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_ENDPOINT_URL, ...).",
    )
    resume: Literal["Auto", "Never"] = Field(
        "Auto",
        description="Auto: resume from the newest complete checkpoint of the same training. Never: start from the "
        "beginning; older checkpoints are deleted when the new run publishes its first one.",
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        "Retain",
        description="What happens to the checkpoints when the job is deleted from the cluster. Retain: they stay. "
        "Delete: they are deleted with the job, including adapters. May be changed at any time.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *uri_rules("uri", WRITABLE),
        Rule(
            "keep",
            "!self.keepAll || self.keep == 3",
            "be 3, the default, if keepAll is true",
            "Remove keep, or keepAll.",
        ),
        Rule(
            "deletionPolicy",
            "self.deletionPolicy == 'Retain' || !self.uri.startsWith('file:')",
            "not be Delete unless uri is a store, because files of a pod cannot be reached after it is deleted",
            "Set deletionPolicy: Retain, or store checkpoints in s3://, gs://, az:// or pvc://.",
        ),
    )


class WandbSpec(Model):
    """Weights & Biases."""

    project: str = Field(min_length=1, max_length=128, description="Project of the run.", examples=["lora-rl"])
    entity: str | None = Field(
        None,
        min_length=1,
        max_length=128,
        description="Team or user. Default: the account's own.",
        examples=["research"],
    )
    credentials_secret: SecretName | None = Field(None, description="Name of a Secret with WANDB_API_KEY.")


class MlflowSpec(Model):
    """MLflow."""

    tracking_uri: Uri = Field(
        description="Tracking server (http:// or https://), or file:FOLDER.", examples=["https://mlflow.example.com"]
    )
    experiment: str = Field(min_length=1, max_length=256, description="Experiment of the run.", examples=["gsm8k"])
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with MLFLOW_TRACKING_TOKEN, or with MLFLOW_TRACKING_USERNAME and "
        "MLFLOW_TRACKING_PASSWORD.",
    )

    rules: ClassVar[tuple[Rule, ...]] = uri_rules("trackingUri", ["https", "file"])


class TrackingSpec(Model):
    """What is recorded of a run, and trackers that get the metrics besides metrics.jsonl and TensorBoard."""

    wandb: WandbSpec | None = Field(None, description="Log to Weights & Biases.")
    mlflow: MlflowSpec | None = Field(None, description="Log to MLflow.")
    samples_per_step: int = Field(
        16,
        ge=0,
        le=4096,
        description="Completions of each step, and of each evaluation, that samples.jsonl and the report keep. Those "
        "of a step are whole groups, at least one. 0 keeps none.",
    )
