"""The whole manifest, and the rules between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Immutable, Rule, broken_rules
from lorarl_api.v1alpha1.adapter import AdapterSpec, BaseModelSpec
from lorarl_api.v1alpha1.algorithm import AlgorithmSpec, NamedReward, RewardSpec
from lorarl_api.v1alpha1.changes import JOB_CHANGES, SPEC_CHANGES
from lorarl_api.v1alpha1.cluster import ClusterSpec
from lorarl_api.v1alpha1.common import API_VERSION, KIND, Model, claim_of
from lorarl_api.v1alpha1.data import DataSpec
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.runtime import CheckpointSpec, RolloutSpec, TrackingSpec, TrainerSpec
from lorarl_api.v1alpha1.status import LoRARLJobStatus

MAX_SECONDS = 2**31 - 1
"""The longest time in Kubernetes' own job APIs."""
RULES_LATER = {"rules": "later"}
"""Validation context for a caller that evaluates the rules itself, to get all broken ones at once."""


class Checked(Model):
    """A model that checks its rules and those of all its parts."""

    @model_validator(mode="after")
    def _keep_rules(self, info: ValidationInfo) -> Self:
        if info.context != RULES_LATER and (
            broken := [f"{'.'.join(map(str, path))}.{rule.field}: {rule}" for path, rule in broken_rules(self)]
        ):
            raise PydanticCustomError("rules", "{broken}", {"broken": "\n".join(broken)})
        return self


def _splits_all_gpus(part: str) -> Rule:
    return Rule(
        f"{part}.tensorParallelSize",
        f"self.cluster.gpusPerNode == 0 || !has(self.{part}.tensorParallelSize) || "
        f"(self.cluster.nodes * self.cluster.gpusPerNode) % self.{part}.tensorParallelSize == 0",
        "divide cluster.nodes x cluster.gpusPerNode",
        f"Lower {part}.tensorParallelSize, or use more GPUs. 1 always fits.",
    )


def _default_for_sft(field: str, cel: str, default: str) -> Rule:
    """A setting of rollouts. The API server writes defaults before it looks at rules, so only another value is seen."""
    return Rule(
        f"rollout.{field}",
        f"self.algorithm.type != 'sft' || {cel}",
        f"be {default} if algorithm.type is sft, which has no rollouts",
        f"Remove rollout.{field}.",
    )


class LoRARLJobSpec(Checked):
    """The model, the data, the training, and the location of the adapter."""

    model: BaseModelSpec = Field(description="The frozen base model.")
    adapter: AdapterSpec = Field(description="The LoRA adapter that is trained.")
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, description="How rewards become a loss.")
    reward: RewardSpec | None = Field(
        None, description="How a completion is scored. grpo requires this or rewards; sft refuses both."
    )
    rewards: list[NamedReward] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Several rewards in place of one. A completion's score is their weighted sum, and each is recorded "
        "as a component. If one of them fails, the completion is left out, unless its weight is 0.",
        examples=[[{"name": "right", "type": "numeric"}, {"name": "format", "weight": 0.2, "function": "mine:tidy"}]],
    )
    data: DataSpec = Field(description="Training and held-out rows.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How vLLM generates.")
    trainer: TrainerSpec = Field(default_factory=TrainerSpec, description="How Megatron trains.")
    checkpoint: CheckpointSpec = Field(description="Where adapters and the training state are stored.")
    tracking: TrackingSpec = Field(
        default_factory=TrackingSpec,
        description="What is recorded of a run, and trackers besides metrics.jsonl and TensorBoard.",
    )
    cluster: ClusterSpec = Field(default_factory=ClusterSpec, description="The machines, and the pods on them.")
    suspend: bool = Field(
        False,
        description="Keep the job from starting, or stop it after a checkpoint and free its machines. Set it to "
        "false to resume from there. May be changed at any time.",
    )
    backoff_limit: int = Field(
        3,
        ge=0,
        le=1000,
        description="How often a failed attempt is retried before the job is Failed. Evicted, preempted and lost "
        "pods do not count. Invalid input is not retried. Default 3 (batch/v1 Jobs: 6). May be changed at any time.",
    )
    max_preemptions_without_progress: int = Field(
        20,
        ge=1,
        le=1000,
        description="How many attempts in a row may be evicted, preempted or lost before they get further than any "
        "attempt before. Then the job is Failed with NoProgress. A queue that takes its machines back does not "
        "count. May be changed at any time.",
    )
    active_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds after status.startTime until the job is stopped and Failed, as in batch/v1. Resuming "
        "restarts the clock; a retry does not. Default: no limit. May be changed at any time.",
        examples=[86_400],
    )
    start_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds from the admission of an attempt until it must run, or for which its RayJob may be "
        "refused. After that the job is Failed and says what it waited for. Time in a queue does not count. "
        "Default: the operator's, 2 hours from when all pods have a node. May be changed at any time.",
        examples=[3600],
    )
    progress_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds without any news from a running attempt (a step, an evaluation, a checkpoint) until it "
        "is ended as a failure with Stalled. Allow for the start, and for the longest step or evaluation. "
        "Default: no limit. May be changed at any time.",
        examples=[3600],
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="Seconds after its end until the job is deleted, as in batch/v1. checkpoint.deletionPolicy says "
        "what happens to its checkpoints. Default: never. May be changed at any time.",
        examples=[604_800],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "reward",
            "self.algorithm.type != 'grpo' || has(self.reward) || has(self.rewards)",
            "be set if algorithm.type is grpo and there are no rewards",
            "Add a reward, for example reward: {type: exact}, or set algorithm.type to sft.",
        ),
        Rule(
            "reward",
            "self.algorithm.type != 'sft' || !has(self.reward)",
            "not be set if algorithm.type is sft, which learns the answers themselves",
            "Remove reward, or set algorithm.type to grpo.",
        ),
        Rule(
            "rewards",
            "self.algorithm.type != 'sft' || !has(self.rewards)",
            "not be set if algorithm.type is sft, which learns the answers themselves",
            "Remove rewards, or set algorithm.type to grpo.",
        ),
        Rule(
            "rewards",
            "!has(self.reward) || !has(self.rewards)",
            "not be set beside reward",
            "Move reward into the list with a name, or remove rewards.",
        ),
        Rule(
            "rewards",
            "!has(self.rewards) || self.rewards.all(one, self.rewards.exists_one(other, other.name == one.name))",
            "have names that differ",
            "Rename a reward, since each name is recorded as reward/NAME.",
        ),
        Rule(
            "rewards",
            "!has(self.rewards) || self.rewards.exists(one, one.weight != 0.0)",
            "have at least one weight that is not 0",
            "Set the weight of a reward that the model should learn, for example to 1.",
        ),
        Rule(
            "rollout.logprobTolerance",
            "!has(self.rollout.logprobTolerance) || self.algorithm.type == 'grpo'",
            "not be set unless algorithm.type is grpo (sft has no rollouts to compare with)",
            "Remove rollout.logprobTolerance.",
        ),
        Rule(
            "checkpoint.keepBest",
            "!has(self.checkpoint.keepBest) || (has(self.checkpoint.keepBest.eval) "
            "? self.data.evals.exists(e, e.name == self.checkpoint.keepBest.eval) : has(self.data.eval))",
            "have an evaluation to choose by",
            "Add data.eval, or name one of data.evals in keepBest.eval.",
        ),
        Rule(
            "checkpoint.keepBest.passAtK",
            "!has(self.checkpoint.keepBest) || !has(self.checkpoint.keepBest.passAtK) || "
            "!has(self.checkpoint.keepBest.eval) || self.data.evals.exists("
            "e, e.name == self.checkpoint.keepBest.eval && self.checkpoint.keepBest.passAtK in e.passAtK)",
            "be in passAtK of the evaluation",
            "Add it to the evaluation's passAtK, or remove it.",
        ),
        Rule(
            "data.evals",
            "self.algorithm.type != 'sft' || self.data.evals.all(e, !has(e.reward) && e.temperature == 0.0)",
            "have neither reward nor temperature if algorithm.type is sft, whose evaluation is the loss of the answers",
            "Remove them.",
        ),
        _default_for_sft("temperature", "self.rollout.temperature == 1.0", "1, the default,"),
        _default_for_sft("topP", "self.rollout.topP == 1.0", "1, the default,"),
        _default_for_sft("topK", "!has(self.rollout.topK)", "absent"),
        _default_for_sft("minP", "self.rollout.minP == 0.0", "0, the default,"),
        _default_for_sft("stop", "size(self.rollout.stop) == 0", "empty"),
        _default_for_sft("adapterSync", "self.rollout.adapterSync == 'tensor'", "tensor, the default,"),
        _default_for_sft("verifySync", "!self.rollout.verifySync", "false, the default,"),
        _default_for_sft("offload", "!has(self.rollout.offload)", "absent"),
        # 0.5 and 1 were the defaults once, and the API server wrote them into objects.
        _default_for_sft(
            "gpuMemoryFraction",
            "!has(self.rollout.gpuMemoryFraction) || self.rollout.gpuMemoryFraction == 0.5",
            "absent or 0.5",
        ),
        _default_for_sft(
            "tensorParallelSize",
            "!has(self.rollout.tensorParallelSize) || self.rollout.tensorParallelSize == 1",
            "absent or 1",
        ),
        Rule(
            "algorithm.updatesPerStep",
            "!has(self.algorithm.updatesPerStep) || self.rollout.promptsPerStep % self.algorithm.updatesPerStep == 0",
            "divide rollout.promptsPerStep",
            "Use a divisor, such as 1.",
        ),
        Rule(
            "trainer.tokensPerMicroBatch",
            "!has(self.trainer.tokensPerMicroBatch) || "
            "self.trainer.tokensPerMicroBatch >= self.rollout.maxPromptTokens + self.rollout.maxResponseTokens",
            "be at least rollout.maxPromptTokens + rollout.maxResponseTokens, the longest sample",
            "Raise tokensPerMicroBatch, or lower the two limits.",
        ),
        _splits_all_gpus("trainer"),
        Rule(
            "adapter.rank",
            "!has(self.trainer.tensorParallelSize) || self.adapter.rank % self.trainer.tensorParallelSize == 0",
            "be a multiple of trainer.tensorParallelSize, over which adapters are split",
            "Use a multiple, such as 32.",
        ),
        _splits_all_gpus("rollout"),
        Rule(
            "rollout.tensorParallelSize",
            "self.cluster.gpusPerNode > 0 || !has(self.rollout.tensorParallelSize) || "
            "self.rollout.tensorParallelSize == 1",
            "be 1 for a CPU job (cluster.gpusPerNode 0)",
            "Remove rollout.tensorParallelSize, or set cluster.gpusPerNode.",
        ),
        Rule(
            "rollout.offload",
            "self.cluster.gpusPerNode > 0 || !has(self.rollout.offload) || size(self.rollout.offload) == 0",
            "be empty for a CPU job (cluster.gpusPerNode 0)",
            "Remove rollout.offload, or set cluster.gpusPerNode.",
        ),
        Rule(
            "trainer.overlap",
            "!self.trainer.overlap || (self.cluster.gpusPerNode > 0 && self.algorithm.type != 'sft')",
            "be false for a CPU job (cluster.gpusPerNode 0), and for algorithm.type sft, which generates nothing",
            "Remove trainer.overlap.",
        ),
        Rule(
            "trainer.precision",
            "self.cluster.gpusPerNode > 0 || !has(self.trainer.precision) || self.trainer.precision != 'bf16'",
            "be fp32 for a CPU job (cluster.gpusPerNode 0)",
            "Remove trainer.precision, or set cluster.gpusPerNode.",
        ),
    )
    cluster_rules: ClassVar[tuple[Rule, ...]] = (
        # The operator looks at the volumes: CEL cannot, because a PodSpec's fields are not in the schema.
        Rule(
            "checkpoint.uri",
            "!self.checkpoint.uri.startsWith('file:') || "
            "(has(self.cluster.podTemplateOverrides.head) && has(self.cluster.podTemplateOverrides.head.spec) && "
            "has(self.cluster.podTemplateOverrides.worker) && has(self.cluster.podTemplateOverrides.worker.spec))",
            "be a store or pvc://CLAIM/FOLDER in a cluster, or file:///FOLDER on a volume that podTemplateOverrides "
            "mounts in head and workers, because a pod's other files are deleted with it",
            "Use s3://, gs://, az:// or pvc://, or run the manifest with `lorarl run`.",
        ),
    )
    immutable: ClassVar[tuple[Immutable, ...]] = SPEC_CHANGES

    @property
    def on_gpu(self) -> bool:
        """Whether the workers have GPUs."""
        return self.cluster.gpus_per_node > 0

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """Precision of model and adapter."""
        return self.trainer.precision or ("bf16" if self.on_gpu else "fp32")

    @property
    def workers_per_node(self) -> int:
        """Workers on each machine: one per GPU, or on CPU as many as one copy of the model is split over."""
        return self.cluster.gpus_per_node or self.trainer.tensor_parallel_size or 1

    @property
    def rewards_by_path(self) -> dict[str, RewardSpec]:
        """The reward or rewards by their path (`spec.rewards[0]`); none for sft."""
        if self.reward is not None:
            return {"spec.reward": self.reward}
        return {f"spec.rewards[{index}]": reward for index, reward in enumerate(self.rewards or [])}

    @property
    def reward_names(self) -> str:
        """Functions and types of the reward or rewards, with commas between them; empty for sft."""
        return ", ".join(reward.function or str(reward.type) for reward in self.rewards_by_path.values())

    @property
    def secrets(self) -> dict[str, str]:
        """The Secrets that the job names, by the path of the field (`spec.checkpoint.credentialsSecret`)."""
        return dict(_secrets("spec", self))

    @property
    def claims(self) -> list[str]:
        """Names of the PersistentVolumeClaims with model, data, first adapter and checkpoints, sorted."""
        uris = [self.model.uri, self.data.train.uri, *(source.uri for _, source in self.data.evaluations)]
        uris += [self.checkpoint.uri, self.adapter.init_from or ""]
        return sorted({claim for uri in uris if (claim := claim_of(uri))})

    @property
    def checkpoint_claim(self) -> str | None:
        """Name of the PersistentVolumeClaim with the checkpoints, which pods write to; None if they are elsewhere."""
        return claim_of(self.checkpoint.uri)

    @property
    def world_size(self) -> int:
        """Workers on all machines together."""
        return self.cluster.nodes * self.workers_per_node


def _secrets(path: str, part: Model) -> Iterator[tuple[str, str]]:
    for name, field in type(part).model_fields.items():
        value, inner = getattr(part, name), f"{path}.{field.alias or name}"
        if isinstance(value, Model):
            yield from _secrets(inner, value)
        elif name == "credentials_secret" and value is not None:
            yield inner, value


class LoRARLJob(Checked):
    """A LoRA reinforcement-learning (or supervised) training job: one manifest in, a PEFT adapter out."""

    api_version: Literal["lorarl.io/v1alpha1"] = Field(description="Version of the API.", examples=[API_VERSION])
    kind: Literal["LoRARLJob"] = Field(description="Kind of the object.", examples=[KIND])
    metadata: Metadata = Field(description="Name and labels.")
    spec: LoRARLJobSpec = Field(description="The model, the data, the training, and the location of the adapter.")
    status: LoRARLJobStatus | None = Field(
        None, description="What is known about the job. lorarl writes it, never the user."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"have at most {MAX_NAME} characters a-z, 0-9 and -, begin with a letter, and end with a letter or digit",
            "Use another name: it becomes part of the names of pods and of the path of the checkpoints.",
        ),
    )

    immutable: ClassVar[tuple[Immutable, ...]] = JOB_CHANGES

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.metadata.name

    @property
    def uid(self) -> str | None:
        """The job's uid in a cluster; None elsewhere. A job that is deleted and applied again gets another uid."""
        uid = (self.metadata.model_extra or {}).get("uid")
        return str(uid) if uid else None
