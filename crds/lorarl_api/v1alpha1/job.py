"""The whole manifest, and the rules between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Immutable, Rule, broken_rules
from lorarl_api.v1alpha1.adapter import AdapterSpec, BaseModelSpec
from lorarl_api.v1alpha1.algorithm import AlgorithmSpec
from lorarl_api.v1alpha1.changes import JOB_CHANGES, SPEC_CHANGES
from lorarl_api.v1alpha1.cluster import ClusterSpec
from lorarl_api.v1alpha1.common import API_VERSION, KIND, MAX_SECONDS, Model, claim_of
from lorarl_api.v1alpha1.data import DataSpec
from lorarl_api.v1alpha1.environment import EnvironmentSpec
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.publish import PublishSpec
from lorarl_api.v1alpha1.retries import RetryRule
from lorarl_api.v1alpha1.reward import NamedReward, RewardSpec
from lorarl_api.v1alpha1.reward_source import RewardSource
from lorarl_api.v1alpha1.rollout import RolloutSpec, SeparateEnginesSpec
from lorarl_api.v1alpha1.runtime import CheckpointSpec, TrackingSpec, TrainerSpec
from lorarl_api.v1alpha1.spec_rules import CLUSTER_RULES, SPEC_RULES
from lorarl_api.v1alpha1.status import LoRARLJobStatus
from lorarl_api.v1alpha1.template import TemplateRef

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


class LoRARLJobSpec(Checked):
    """The model, the data, the training, and the location of the adapter."""

    model: BaseModelSpec = Field(description="The frozen base model.")
    adapter: AdapterSpec = Field(description="The LoRA adapter that is trained.")
    algorithm: AlgorithmSpec = Field(default_factory=AlgorithmSpec, description="How rewards become a loss.")
    reward: RewardSpec | None = Field(
        None,
        description="How a completion is scored. sft, dpo and distillation refuse it; all other types require this, "
        "rewards or an environment without tools.",
    )
    rewards: list[NamedReward] | None = Field(
        None,
        min_length=1,
        max_length=16,
        description="Several rewards in place of one. A completion's score is their weighted sum, and each is recorded "
        "as a component. If one of them fails, the completion is left out, unless its weight is 0.",
        examples=[[{"name": "right", "type": "numeric"}, {"name": "format", "weight": 0.2, "function": "mine:tidy"}]],
    )
    environment: EnvironmentSpec | None = Field(
        None,
        description="Several turns: tools that the model may call, or a class, an agent or a package in place of a "
        "reward.",
        examples=[{"tools": ["my_tools:search"]}, {"function": "my_env:Episode", "maxTurns": 4}],
    )
    data: DataSpec = Field(
        description="Training and held-out rows.",
        examples=[{"train": {"uri": "file:train.jsonl"}}],
    )
    rollout: RolloutSpec = Field(default_factory=RolloutSpec, description="How vLLM generates.")
    trainer: TrainerSpec = Field(default_factory=TrainerSpec, description="How Megatron trains.")
    checkpoint: CheckpointSpec = Field(description="Where adapters and the training state are stored.")
    tracking: TrackingSpec = Field(
        default_factory=TrackingSpec,
        description="What is recorded of a run, and trackers besides metrics.jsonl and TensorBoard.",
    )
    cluster: ClusterSpec = Field(default_factory=ClusterSpec, description="The machines, and the pods on them.")
    publish: list[PublishSpec] | None = Field(
        None,
        min_length=1,
        max_length=8,
        description="Where adapters are served to users as soon as they pass a gate: docs/publishing.md. Only in a "
        "cluster. May be changed at any time. An entry that is removed is withdrawn.",
        examples=[[{"name": "sums", "minimum": 0.7, "aibrix": {"podSelector": {"model.aibrix.ai/name": "qwen"}}}]],
    )
    template_ref: TemplateRef | None = Field(
        None,
        description="Template with values for cluster, tracking, labels and annotations, where the job has none. "
        "Only in a cluster. Default: the operator's default template, if it has one.",
        examples=[{"kind": "ClusterLoRARLJobTemplate", "name": "gpu-pool"}],
    )
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
    retry_policy: list[RetryRule] = Field(
        default_factory=list,
        max_length=20,
        description="What follows when an attempt ends, in the manner of podFailurePolicy of batch/v1: the first rule "
        "that fits the end decides. Without one, the table of docs/jobs.md does. May be changed at any time.",
        examples=[[{"reason": "StorageFailed", "action": "Fail"}, {"exitCode": 75, "action": "Ignore"}]],
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

    rules: ClassVar[tuple[Rule, ...]] = SPEC_RULES
    cluster_rules: ClassVar[tuple[Rule, ...]] = CLUSTER_RULES
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
        """Workers on each machine: one per GPU, or on CPU as many as make a trainer's updates together."""
        trainer = self.trainer
        sharing = (trainer.tensor_parallel_size or 1) * (trainer.context_parallel_size or 1)
        return self.cluster.gpus_per_node or max(sharing, trainer.expert_parallel_size or 1)

    @property
    def rewards_by_path(self) -> dict[str, RewardSpec]:
        """The reward or rewards by their path (`spec.rewards[0]`); none for sft, dpo and distillation."""
        if self.reward is not None:
            return {"spec.reward": self.reward}
        return {f"spec.rewards[{index}]": reward for index, reward in enumerate(self.rewards or [])}

    _without_engine: bool = PrivateAttr(False)

    def without_engine(self) -> Self:
        """Return the spec of a run whose rollouts are there already, so that it generates nothing."""
        spec = self.model_copy()
        spec._without_engine = True
        return spec

    @property
    def generates(self) -> bool:
        """Whether the workers have engines: to train on completions, or for an evaluation that scores them."""
        return self._wants_completions and not self.rollout.servers and not self.rollout.separate_engines

    @property
    def separate_engines(self) -> SeparateEnginesSpec | None:
        """The engines that generate on GPUs that the workers do not use; None where nothing or something else does."""
        return self.rollout.separate_engines if self._wants_completions else None

    @property
    def engine_gpus(self) -> int:
        """GPUs of the separate engines, beside those of the workers; 0 without any, and for a CPU job."""
        engines = self.separate_engines
        return engines.count * engines.tensor_parallel_size if engines and self.on_gpu else 0

    @property
    def servers(self) -> list[str]:
        """The servers that generate in the place of engines in the workers."""
        return list(self.rollout.servers or ()) if self._wants_completions else []

    @property
    def _wants_completions(self) -> bool:
        generated = not self.algorithm.about.from_data or any(each.reward for each in self.data.evals)
        return generated and not self._without_engine

    @property
    def reference(self) -> Literal["base", "start", "average"]:
        """What a KL penalty, or dpo, compares the policy with: the base, the adapter that training starts from, or an
        average of the adapter.

        dpo's is always the policy that it starts from (arXiv:2305.18290). A new adapter changes nothing of the base.
        """
        if self.algorithm.about.learns_from == "pairs":
            return "start" if self.adapter.init_from else "base"
        return self.algorithm.kl.reference if self.algorithm.kl else "base"

    @property
    def reward_names(self) -> str:
        """What the reward or rewards are, with commas between them, or the environment; empty without any."""
        if self.environment is not None and self.opens_episodes:
            return ":".join(self.environment.world or self.environment.functions)
        return ", ".join(reward.kind for reward in self.rewards_by_path.values())

    @property
    def opens_episodes(self) -> bool:
        """Whether a class or an agent opens each episode, so that a row's prompt is not what the model sees."""
        return self.environment is not None and self.environment.tools is None

    @property
    def user_code(self) -> dict[str, RewardSpec | EnvironmentSpec]:
        """What may name code of the user's, by its path: rewards, also those of evaluations, and the environment."""
        of: dict[str, RewardSpec | EnvironmentSpec] = {**self.rewards_by_path}
        of |= {
            f"spec.data.evals[{index}].reward": each.reward for index, each in enumerate(self.data.evals) if each.reward
        }
        return of | ({"spec.environment": self.environment} if self.environment else {})

    @property
    def reward_sources(self) -> dict[str, RewardSource]:
        """The sources of reward functions, also those of evaluations, and of the environment, by their path
        (`spec.reward.source`).
        """
        return {f"{path}.source": code.source for path, code in self.user_code.items() if code.source}

    @property
    def failed_shares(self) -> dict[str, float]:
        """`maxFailedShare` of each of the job's rewards, and of its environment, by the path in the manifest."""
        shares = {path: reward.max_failed_share for path, reward in self.rewards_by_path.items()}
        return shares | ({"spec.environment": self.environment.max_failed_share} if self.environment else {})

    @property
    def secrets(self) -> dict[str, str]:
        """The Secrets that the job's pods use, by the path of the field (`spec.checkpoint.credentialsSecret`)."""
        return {path: name for path, name in _secrets("spec", self) if not path.startswith("spec.publish[")}

    @property
    def claims(self) -> list[str]:
        """Names of the PersistentVolumeClaims with model, data, reward code, adapters and checkpoints, sorted."""
        uris = [self.model.uri, *(source.uri for source in self.data.sources.values())]
        uris += [source.uri for _, source in self.data.evaluations]
        uris += [self.checkpoint.uri, self.adapter.init_from, self.algorithm.teacher_adapter]
        uris.append(self.data.chat_template_file)
        uris += [source.uri for source in self.reward_sources.values()]
        return sorted({claim for uri in uris if uri and (claim := claim_of(uri))})

    @property
    def checkpoint_claim(self) -> str | None:
        """Name of the PersistentVolumeClaim with the checkpoints, which pods write to; None if they are elsewhere."""
        return claim_of(self.checkpoint.uri)

    @property
    def world_size(self) -> int:
        """Workers on all machines together."""
        return self.cluster.nodes * self.workers_per_node

    def on_nodes(self, count: int) -> Self:
        """Return the spec of the same training on so many machines."""
        return self.model_copy(update={"cluster": self.cluster.model_copy(update={"nodes": count})})


def _secrets(path: str, part: Model) -> Iterator[tuple[str, str]]:
    for name, field in type(part).model_fields.items():
        value, inner = getattr(part, name), f"{path}.{field.alias or name}"
        if isinstance(value, Model):
            yield from _secrets(inner, value)
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                if isinstance(entry, Model):
                    yield from _secrets(f"{inner}[{index}]", entry)
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
