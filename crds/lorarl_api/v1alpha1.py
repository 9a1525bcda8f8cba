"""`LoRARLJob` v1alpha1: the contract between a user's manifest, the trainer and the operator.

These models are the one source of truth. The CRD, docs/reference.md and `lorarl validate` are made from them.
Every field says what it is, in which unit and range; an unknown key is refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "lorarl.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LoRARLJob"
MAX_LORA_RANK = 512
"""The largest rank that vLLM serves (`max_lora_rank`)."""

SecretName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
FieldName = Annotated[str, Field(min_length=1, max_length=128)]
ModulePattern = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.*?\[\]-]+$")]
ModelUri = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^(hf|s3|gs|az|file)://?.+")]
DataUri = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^(hf|s3|gs|az|file)://?.+")]
StoreUri = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^(s3|gs|az|file)://?.+")]


class Model(BaseModel):
    """What every part of the contract shares: camelCase in YAML, unknown keys refused, no silent conversion."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, strict=True)


class BaseModelSpec(Model):
    """The frozen base model."""

    uri: ModelUri = Field(
        description="Where the base model lies, in Hugging Face format: hf://ORG/NAME, s3://, gs:// or az:// with a folder, "
        "file:///FOLDER, or file:FOLDER (relative to where `lorarl run` is started)."
    )
    revision: str | None = Field(
        None, min_length=1, max_length=256, description="Branch, tag or commit of an hf:// model; the hub's main when absent."
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret whose keys give access to the model: HF_TOKEN for hf://, the store's own names otherwise "
        "(AWS_ACCESS_KEY_ID, ...). `lorarl run` reads it from the folder $LORARL_SECRETS_DIR/NAME, one file a key.",
    )


class AdapterSpec(Model):
    """The LoRA adapter that is trained. Only its parameters change."""

    type: Literal["canonical_lora", "lora"] = Field(
        "canonical_lora",
        description="canonical_lora: an adapter for each of q, k, v, gate and up, as PEFT has them. "
        "lora: one adapter for the fused QKV and one for the fused gate and up, with a shared A.",
    )
    rank: int = Field(32, ge=1, le=MAX_LORA_RANK, description="Rank r of the adapter, 1 to 512 (the most that vLLM serves).")
    alpha: int = Field(64, ge=1, le=8192, description="Numerator of the scaling alpha / rank, 1 to 8192.")
    dropout: float = Field(
        0.0, ge=0.0, lt=1.0, description="Dropout before the low-rank projection while training, 0 up to but not including 1."
    )
    target_modules: list[ModulePattern] = Field(
        min_length=1,
        max_length=64,
        description="Which linear layers get an adapter: [all-linear] (every one in the decoder, found from the model; never lm_head or a "
        "router), Hugging Face names (q_proj), Megatron names (linear_proj), or wildcards over full names (*.layers.0.*).",
    )
    exclude_modules: list[ModulePattern] = Field(
        default_factory=list, max_length=64, description="Layers to leave out of targetModules; the same names and wildcards."
    )
    init_from: StoreUri | None = Field(
        None,
        description="Folder of a PEFT LoRA adapter to start from. Its rank, base model and modules must fit. A new adapter when absent.",
    )


class AlgorithmSpec(Model):
    """How rewards become a loss. Fields marked with a type are used by that type alone."""

    type: Literal["grpo", "sft"] = Field(
        "grpo",
        description="grpo: group-relative policy optimisation (arXiv:2402.03300), loss averaged over tokens. sft: cross-entropy on the answers.",
    )
    group_size: int | None = Field(None, ge=2, le=1024, description="grpo: completions a prompt, 2 to 1024; 8 when absent.")
    clip_range: float | None = Field(
        None, gt=0.0, lt=1.0, description="grpo: the probability ratio is clipped to 1 - clipRange .. 1 + clipRange; 0.2 when absent."
    )
    kl_coefficient: float | None = Field(
        None, ge=0.0, le=10.0, description="grpo: weight of the KL penalty to the base model, 0 to 10; 0 (no penalty) when absent."
    )
    updates_per_step: int | None = Field(
        None,
        ge=1,
        le=64,
        description="grpo: optimizer updates made of one step's rollouts, each on an equal share of the prompts; 1 when absent.",
    )


class RewardSpec(Model):
    """How a completion is scored. Exactly one of type and function."""

    type: Literal["exact", "numeric", "regex", "math_verify"] | None = Field(
        None,
        description="exact: the completion, stripped, equals the answer. numeric: the last number in it equals the answer's last number. "
        "regex: what pattern finds equals the answer. math_verify: mathematically equal, by the package math-verify. 1 when so, else 0.",
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="regex: Python pattern searched in the completion; its first group (or the whole match) is compared.",
    )
    tolerance: float | None = Field(None, ge=0.0, description="numeric: largest accepted absolute difference; 0 when absent.")
    function: str | None = Field(
        None,
        max_length=256,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="A Python function package.module:function(prompt, completion, answer, row) -> float, sync or async. It is found on the "
        "Python path and beside the manifest.",
    )
    timeout_seconds: float = Field(
        10.0, gt=0.0, le=3600.0, description="Longest time for scoring one completion, in seconds; past it that sample is left out."
    )


class DataSource(Model):
    """Rows of prompts and answers."""

    uri: DataUri = Field(
        description="A .jsonl, .parquet or .csv file (s3://, gs://, az://, file:///PATH, file:PATH), or hf://ORG/NAME for a data set of the hub."
    )
    prompt_field: FieldName = Field("prompt", description="Column with the prompt: a text, or a list of chat messages {role, content}.")
    answer_field: FieldName = Field("answer", description="Column with the reference answer; for sft the text to learn.")
    subset: FieldName | None = Field(None, description="Configuration of an hf:// data set.")
    split: FieldName | None = Field(
        None, description="Split of an hf:// data set; train for data.train and test for data.eval when absent."
    )


class EvalSource(DataSource):
    """Held-out rows."""

    every: int = Field(20, ge=1, le=100_000, description="Evaluate after every so many steps, and at the start and the end.")


class DataSpec(Model):
    """What is trained on and what is held out."""

    train: DataSource = Field(description="Training rows.")
    eval: EvalSource | None = Field(
        None, description="Held-out rows: scored greedily (grpo) or by their loss (sft). No evaluation when absent."
    )
    chat_template: bool = Field(
        True,
        description="Format prompts with the tokenizer's chat template. Set to false for a base model without one: prompts are used as they are.",
    )
    credentials_secret: SecretName | None = Field(None, description="Name of a Secret whose keys give access to the data.")


class RolloutSpec(Model):
    """How vLLM generates."""

    prompts_per_step: int = Field(64, ge=1, le=65_536, description="Prompts a step; for sft, rows a step.")
    max_prompt_tokens: int = Field(512, ge=1, le=1_000_000, description="Rows whose prompt has more tokens are left out, and counted.")
    max_response_tokens: int = Field(
        1024, ge=1, le=1_000_000, description="Most tokens a completion may have; for sft, longer answers are left out."
    )
    temperature: float = Field(
        1.0,
        gt=0.0,
        le=10.0,
        description="Sampling temperature. Log-probabilities are taken at the same temperature by vLLM and the trainer.",
    )
    adapter_sync: Literal["tensor", "disk"] = Field(
        "tensor", description="How a new adapter reaches vLLM. tensor: in memory, within the process. disk: through files in shared memory."
    )
    logprob_tolerance: float | None = Field(
        None,
        gt=0.0,
        le=10.0,
        description="Largest mean absolute difference, in nats, between vLLM's and the trainer's log-probabilities of a step's tokens; past it the "
        "run stops. When absent 1e-5 in fp32 and 0.05 in bf16.",
    )
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="GPUs that one vLLM engine is split over.")
    gpu_memory_fraction: float = Field(
        0.5, gt=0.0, lt=1.0, description="Share of a GPU's memory that vLLM may take. CPU jobs take what the longest batch needs."
    )


class TrainerSpec(Model):
    """How Megatron trains."""

    steps: int = Field(200, ge=1, le=10_000_000, description="Training steps.")
    learning_rate: float = Field(1.0e-5, gt=0.0, le=1.0, description="Peak learning rate of AdamW.")
    warmup_steps: int = Field(
        0, ge=0, le=1_000_000, description="Steps over which the learning rate rises linearly from zero; constant afterwards."
    )
    weight_decay: float = Field(0.0, ge=0.0, le=1.0, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0.0, le=1e6, description="The gradient's norm over all adapter parameters is clipped to this.")
    tokens_per_micro_batch: int = Field(
        16_384, ge=1, le=100_000_000, description="Most tokens, padding included, in one forward and backward pass of one worker."
    )
    tensor_parallel_size: int = Field(1, ge=1, le=64, description="Workers that one copy of the trainer's model is split over.")
    precision: Literal["fp32", "bf16"] | None = Field(
        None, description="Precision of model and adapter; the optimizer keeps fp32. fp32 on CPU and bf16 on GPU when absent."
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="Seed of the new adapter, the order of the data and the sampling. Same seed, same adapter."
    )


class CheckpointSpec(Model):
    """Where adapters and the training state go, and how a run goes on."""

    uri: StoreUri = Field(
        description="Folder under which the job's checkpoints are kept, in URI/NAME-OF-THE-JOB/: s3://, gs://, az://, file:///FOLDER or file:FOLDER."
    )
    every: int = Field(10, ge=1, le=100_000, description="Steps between checkpoints. The last step has one too.")
    keep: int = Field(3, ge=1, le=1000, description="Newest checkpoints that are kept; older ones are deleted.")
    credentials_secret: SecretName | None = Field(
        None, description="Name of a Secret with the store's keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...)."
    )
    resume: Literal["Auto", "Never"] = Field(
        "Auto",
        description="Auto: go on from the newest whole checkpoint of the same training. Never: start anew; older checkpoints are deleted once the new run publishes its first.",
    )


class WandbSpec(Model):
    """Weights & Biases."""

    project: str = Field(min_length=1, max_length=128, description="Project that the run is logged to.")
    entity: str | None = Field(None, max_length=128, description="Team or user; the account's default when absent.")
    credentials_secret: SecretName | None = Field(None, description="Name of a Secret with WANDB_API_KEY.")


class MlflowSpec(Model):
    """MLflow."""

    tracking_uri: str = Field(min_length=1, max_length=1024, description="Tracking server, or file:FOLDER.")
    experiment: str = Field(min_length=1, max_length=256, description="Experiment that the run is logged to.")
    credentials_secret: SecretName | None = Field(
        None, description="Name of a Secret with MLFLOW_TRACKING_TOKEN, or with MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD."
    )


class TrackingSpec(Model):
    """Where metrics go besides metrics.jsonl and TensorBoard."""

    wandb: WandbSpec | None = Field(None, description="Log to Weights & Biases.")
    mlflow: MlflowSpec | None = Field(None, description="Log to MLflow.")


class ClusterSpec(Model):
    """The machines."""

    nodes: int = Field(1, ge=1, le=1024, description="Machines with workers. `lorarl run` has one.")
    gpus_per_node: int = Field(
        0,
        ge=0,
        le=64,
        description="GPUs on each machine, one worker a GPU. 0: a CPU job, with as many workers as trainer.tensorParallelSize.",
    )


class LoRARLJobSpec(Model):
    """What to train, on what, and where the adapter goes."""

    model: BaseModelSpec = Field(description="The frozen base model.")
    adapter: AdapterSpec = Field(description="The LoRA adapter.")
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, description="How rewards become a loss.")
    reward: RewardSpec | None = Field(None, description="How a completion is scored. Needed by grpo, refused by sft.")
    data: DataSpec = Field(description="Training and held-out rows.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How vLLM generates.")
    trainer: TrainerSpec = Field(default_factory=TrainerSpec, description="How Megatron trains.")
    checkpoint: CheckpointSpec = Field(description="Where adapters and the training state go.")
    tracking: TrackingSpec = Field(default_factory=TrackingSpec, description="Where metrics go.")
    cluster: ClusterSpec = Field(default_factory=ClusterSpec, description="The machines.")
    suspend: bool = Field(False, description="Hold the job back, or stop it after a checkpoint.")
