"""The whole manifest, and the rules between its parts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Immutable, Rule, broken_rules, immutable, immutable_but
from lorarl_api.v1alpha1.adapter import AdapterSpec, BaseModelSpec
from lorarl_api.v1alpha1.algorithm import AlgorithmSpec, RewardSpec
from lorarl_api.v1alpha1.cluster import QUALIFIED_NAME, ClusterSpec, LabelValue
from lorarl_api.v1alpha1.common import API_VERSION, KIND, Model, claim_of
from lorarl_api.v1alpha1.data import DataSpec
from lorarl_api.v1alpha1.runtime import CheckpointSpec, RolloutSpec, TrackingSpec, TrainerSpec
from lorarl_api.v1alpha1.status import LoRARLJobStatus

MAX_NAME = 42
"""Longest name of a job: an attempt adds to it, and KubeRay takes 47 characters for a RayJob."""
MAX_SECONDS = 2**31 - 1
"""The longest time that Kubernetes' own job APIs take."""
RULES_LATER = {"rules": "later"}
"""Validation context for a caller that evaluates the rules itself, to learn of all broken ones at once."""


class Checked(Model):
    """A model that keeps its rules and those of all its parts."""

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
        f"self.cluster.gpusPerNode == 0 || (self.cluster.nodes * self.cluster.gpusPerNode) % self.{part}.tensorParallelSize == 0",
        f"{part}.tensorParallelSize to divide cluster.nodes x cluster.gpusPerNode",
        f"lower {part}.tensorParallelSize, or take more GPUs; 1 always fits",
    )


# What to do where a field may not change: for what makes another training of it, and for what does not.
_ANOTHER = "apply the manifest under another metadata.name, for it would be another training"
_AGAIN = "delete the job and apply it again: it goes on from its newest checkpoint, where checkpoint.deletionPolicy is Retain"


class LoRARLJobSpec(Checked):
    """What to train, on what, and where the adapter goes."""

    model: BaseModelSpec = Field(description="The frozen base model.")
    adapter: AdapterSpec = Field(description="The LoRA adapter that is trained.")
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, description="How rewards become a loss.")
    reward: RewardSpec | None = Field(None, description="How a completion is scored. Needed by grpo, refused by sft.")
    data: DataSpec = Field(description="Training and held-out rows.")
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How vLLM generates.")
    trainer: TrainerSpec = Field(default_factory=TrainerSpec, description="How Megatron trains.")
    checkpoint: CheckpointSpec = Field(description="Where adapters and the training state go.")
    tracking: TrackingSpec = Field(
        default_factory=TrackingSpec, description="Where metrics go besides metrics.jsonl and TensorBoard."
    )
    cluster: ClusterSpec = Field(default_factory=ClusterSpec, description="The machines, and the pods on them.")
    suspend: bool = Field(
        False,
        description="Hold the job back, or stop it after a checkpoint and free its machines. Set back to false it goes on from there. May "
        "be changed at any time.",
    )
    backoff_limit: int = Field(
        3,
        ge=0,
        le=1000,
        description="How often a failed attempt is tried again before the job is Failed. Evicted, preempted and lost pods do not count. "
        "Absent it is 3, where a Job of batch/v1 has 6. May be changed at any time.",
    )
    active_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds after status.startTime at which the job is stopped and Failed, as in batch/v1; resuming restarts the clock, "
        "a next attempt does not. No limit when absent. May be changed at any time.",
        examples=[86_400],
    )
    start_deadline_seconds: int | None = Field(
        None,
        ge=1,
        le=MAX_SECONDS,
        description="Seconds that an attempt may take from its admission until it runs, or for which its RayJob may be refused; past them "
        "the job is Failed and says what it waited for. A queue's time does not count. It waits for ever when absent. May be changed at "
        "any time.",
        examples=[3600],
    )
    ttl_seconds_after_finished: int | None = Field(
        None,
        ge=0,
        le=MAX_SECONDS,
        description="Seconds after its end at which the job is deleted, as in batch/v1; checkpoint.deletionPolicy says what becomes of its "
        "checkpoints. It stays when absent. May be changed at any time.",
        examples=[604_800],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "reward",
            "self.algorithm.type != 'grpo' || has(self.reward)",
            "a reward with algorithm.type grpo",
            "add one, e.g. reward: {type: exact}; or set algorithm.type to sft",
        ),
        Rule(
            "reward",
            "self.algorithm.type != 'sft' || !has(self.reward)",
            "no reward with algorithm.type sft, which learns the answers themselves",
            "remove reward, or set algorithm.type to grpo",
        ),
        Rule(
            "rollout.logprobTolerance",
            "!has(self.rollout.logprobTolerance) || self.algorithm.type == 'grpo'",
            "rollout.logprobTolerance only with algorithm.type grpo (sft has no rollouts to compare with)",
            "remove rollout.logprobTolerance",
        ),
        Rule(
            "algorithm.updatesPerStep",
            "!has(self.algorithm.updatesPerStep) || self.rollout.promptsPerStep % self.algorithm.updatesPerStep == 0",
            "algorithm.updatesPerStep to divide rollout.promptsPerStep",
            "choose a divisor of promptsPerStep, e.g. 1",
        ),
        Rule(
            "trainer.tokensPerMicroBatch",
            "self.trainer.tokensPerMicroBatch >= self.rollout.maxPromptTokens + self.rollout.maxResponseTokens",
            "trainer.tokensPerMicroBatch of at least rollout.maxPromptTokens + rollout.maxResponseTokens, the longest sample",
            "raise tokensPerMicroBatch, or lower the two limits",
        ),
        _splits_all_gpus("trainer"),
        Rule(
            "adapter.rank",
            "self.adapter.rank % self.trainer.tensorParallelSize == 0",
            "adapter.rank to be a multiple of trainer.tensorParallelSize, over which adapters are split",
            "choose a multiple, e.g. 32",
        ),
        _splits_all_gpus("rollout"),
        Rule(
            "rollout.tensorParallelSize",
            "self.cluster.gpusPerNode > 0 || self.rollout.tensorParallelSize == 1",
            "rollout.tensorParallelSize 1 on a CPU job (cluster.gpusPerNode 0)",
            "remove rollout.tensorParallelSize, or set cluster.gpusPerNode",
        ),
        Rule(
            "rollout.offload",
            "self.cluster.gpusPerNode > 0 || !has(self.rollout.offload) || size(self.rollout.offload) == 0",
            "no rollout.offload on a CPU job (cluster.gpusPerNode 0)",
            "remove rollout.offload, or set cluster.gpusPerNode",
        ),
        Rule(
            "trainer.precision",
            "self.cluster.gpusPerNode > 0 || !has(self.trainer.precision) || self.trainer.precision != 'bf16'",
            "trainer.precision fp32 on a CPU job (cluster.gpusPerNode 0)",
            "remove trainer.precision, or set cluster.gpusPerNode",
        ),
    )
    immutable: ClassVar[tuple[Immutable, ...]] = (
        immutable("model", _ANOTHER),
        immutable("adapter", _ANOTHER),
        immutable("algorithm", _ANOTHER),
        immutable("reward", _ANOTHER, optional=True),
        immutable("data", _ANOTHER),
        immutable("rollout", _AGAIN),
        immutable_but("trainer", TrainerSpec, ["steps"], _AGAIN),
        immutable_but("checkpoint", CheckpointSpec, ["deletionPolicy"], _AGAIN),
        immutable("tracking", _AGAIN),
        immutable("cluster", _AGAIN),
    )

    @property
    def on_gpu(self) -> bool:
        """Whether the workers have GPUs."""
        return self.cluster.gpus_per_node > 0

    @property
    def precision(self) -> Literal["fp32", "bf16"]:
        """Precision of model and adapter."""
        return self.trainer.precision or ("bf16" if self.on_gpu else "fp32")

    @property
    def logprob_tolerance(self) -> float:
        """Largest mean absolute difference between vLLM's and the trainer's log-probabilities, in nats."""
        return self.rollout.logprob_tolerance or {"fp32": 1e-5, "bf16": 0.05}[self.precision]

    @property
    def workers_per_node(self) -> int:
        """Workers on each machine: one a GPU, or on CPU as many as one copy of the model is split over."""
        return self.cluster.gpus_per_node or self.trainer.tensor_parallel_size

    @property
    def secrets(self) -> dict[str, str]:
        """The Secrets that the job names, by the field that names each (`spec.checkpoint.credentialsSecret`)."""
        return dict(_secrets("spec", self))

    @property
    def claims(self) -> list[str]:
        """Names of the PersistentVolumeClaims that model and data lie on, sorted."""
        uris = [self.model.uri, self.data.train.uri, *([self.data.eval.uri] if self.data.eval else [])]
        return sorted({claim for uri in uris if (claim := claim_of(uri))})

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


AnnotationText = Annotated[str, Field(max_length=262_144)]
Namespace = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        json_schema_extra={
            "expected": "the name of a namespace: at most 63 characters a-z, 0-9 and -, a letter or digit at both ends"
        },
    ),
]

# The rest of Kubernetes' ObjectMeta, which objects that are read back from a cluster carry.
_OTHER_METADATA = frozenset(
    [
        *(
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "finalizers",
            "generateName",
            "generation",
        ),
        *("managedFields", "ownerReferences", "resourceVersion", "selfLink", "uid"),
    ]
)


class Metadata(Model):
    """The object's name and labels. The other keys of Kubernetes' ObjectMeta are kept as they are."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(
        description=f"Name of the job: a letter, then a-z, 0-9 and -, at most {MAX_NAME} characters. Its checkpoints are kept under it.",
        examples=["gsm8k"],
    )
    namespace: Namespace | None = Field(None, description="Namespace in the cluster.", examples=["default"])
    labels: dict[str, LabelValue] = Field(default_factory=dict, description="Labels.")
    annotations: dict[str, AnnotationText] = Field(default_factory=dict, description="Annotations.")

    @field_validator("labels", "annotations")
    @classmethod
    def _keys_for_kubernetes(cls, value: dict[str, str]) -> dict[str, str]:
        if refused := [key for key in value if not re.fullmatch(QUALIFIED_NAME, key)]:
            raise PydanticCustomError("label_keys", "keys {refused}", {"refused": refused})
        return value

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(str(key) for key in data if key not in cls._keys())):
            raise PydanticCustomError("metadata_keys", "unknown keys {unknown}", {"unknown": unknown})
        return data

    @classmethod
    def _keys(cls) -> frozenset[str]:
        return _OTHER_METADATA | cls.model_fields.keys()


class LoRARLJob(Checked):
    """A LoRA reinforcement-learning (or supervised) training job: one manifest in, a PEFT adapter out."""

    api_version: Literal["lorarl.io/v1alpha1"] = Field(description="Version of the API.", examples=[API_VERSION])
    kind: Literal["LoRARLJob"] = Field(description="Kind of the object.", examples=[KIND])
    metadata: Metadata = Field(description="Name and labels.")
    spec: LoRARLJobSpec = Field(description="What to train, on what, and where the adapter goes.")
    status: LoRARLJobStatus | None = Field(
        None, description="What is known about the job; written by lorarl, never by the user."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "metadata.name",
            f"size(self.metadata.name) <= {MAX_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            f"a name of at most {MAX_NAME} characters a-z, 0-9 and -, which begins with a letter and ends with a letter or digit",
            "shorten or rename it; it becomes part of the names of pods and of the checkpoints' path",
        ),
    )

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.metadata.name

    @property
    def uid(self) -> str | None:
        """Which job of this name it is, where a cluster has it: one that is deleted and applied again is another."""
        uid = (self.metadata.model_extra or {}).get("uid")
        return str(uid) if uid else None
