"""Which trained adapters reach the servers that users ask, and what they must reach first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import FROM_ANSWERS, is_one_of
from lorarl_api.v1alpha1.common import Model, ObjectName, SecretName
from lorarl_api.v1alpha1.kubernetes import LabelValue, label_keys

TargetName = Literal["aibrix", "kserve"]
TARGETS: tuple[TargetName, ...] = get_args(TargetName)
"""Each is a field of an entry, and a value of the operator's chart."""

PublishedName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=40,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        examples=["sums"],
        json_schema_extra={"expected": "a name of at most 40 characters a-z, 0-9 and - that begins with a letter"},
    ),
]


class AibrixTarget(Model):
    """AIBrix: one ModelAdapter for each version, in the job's namespace."""

    pod_selector: dict[str, LabelValue] = Field(
        min_length=1,
        max_length=16,
        description="Labels of the pods that serve the base model, in the job's namespace. All of them load the "
        "adapter.",
        examples=[{"model.aibrix.ai/name": "qwen2-5-0-5b"}],
    )
    base_model: LabelValue | None = Field(
        None,
        min_length=1,
        description="Name of the base model in AIBrix, for its gateway.",
        examples=["qwen2-5-0-5b"],
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with AIBrix's own keys for the store: aws_access_key_id, aws_secret_access_key "
        "and aws_region. The job does not use it.",
        examples=["aibrix-s3-keys"],
    )

    rules: ClassVar[tuple[Rule, ...]] = (label_keys("podSelector", "labels"),)


class KserveTarget(Model):
    """KServe: an adapter in the list of an LLMInferenceService, in the job's namespace."""

    service: ObjectName = Field(
        description="Name of the LLMInferenceService that serves the base model. It needs the label "
        "lorarl.io/accepts-adapters=true. Each change of its adapters replaces its pods in turn.",
        examples=["qwen"],
    )


class PublishSpec(Model):
    """One place to which adapters are published, and the gate before it."""

    name: PublishedName = Field(
        description="What the models are called there: version 30 is NAME-30-, and the first 8 digits of its SHA-256."
    )
    when: Literal["Improvement", "End"] = Field(
        "Improvement",
        description="Improvement: each checkpoint that becomes the best one by checkpoint.keepBest. End: only the best "
        "one of a training that has succeeded.",
    )
    minimum: float | None = Field(
        None,
        description="The least value of the evaluation of checkpoint.keepBest. A checkpoint below it is held back.",
        examples=[0.7],
    )
    maximum: float | None = Field(
        None,
        description="The same for an evaluation that is a loss, which sft has: the highest value.",
        examples=[1.2],
    )
    step: int | None = Field(
        None,
        ge=0,
        description="Serve the version of this step, which must have been served before, until the field is removed. "
        "This is how a version is rolled back.",
        examples=[30],
    )
    aibrix: AibrixTarget | None = Field(None, description="Publish to AIBrix. Set this or kserve.")
    kserve: KserveTarget | None = Field(None, description="Publish to KServe. Set this or aibrix.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "aibrix",
            f"[{', '.join(f'has(self.{one})' for one in TARGETS)}].exists_one(one, one)",
            f"be the entry's target, or another one: exactly one of {' and '.join(TARGETS)}",
            "Set aibrix for AIBrix, or kserve for KServe. Add a second entry for the other one.",
        ),
    )

    @property
    def target(self) -> TargetName:
        """The servers that it is about."""
        return next(one for one in TARGETS if getattr(self, one) is not None)


_LOSS = (
    f"{is_one_of('self.algorithm.type', FROM_ANSWERS)} && !has(self.checkpoint.keepBest.passAtK) && "
    "!(has(self.checkpoint.keepBest.eval) && "
    "self.data.evals.exists(e, e.name == self.checkpoint.keepBest.eval && has(e.reward)))"
)
"""Whether the evaluation of checkpoint.keepBest is a loss. One with its own reward is a score, also of sft."""


def publish_rules() -> Iterator[Rule]:
    """Yield what a job needs whose adapters are published."""
    yield _needs(
        "checkpoint.keepBest",
        "has(self.checkpoint.keepBest)",
        "be set with publish: its evaluation is the gate",
        "Add keepBest: {}, and data.eval.",
    )
    yield _needs(
        "publish",
        f"!has(self.checkpoint.keepBest) || ({_LOSS}) || self.publish.all(one, has(one.minimum) && !has(one.maximum))",
        "have a minimum in each entry and no maximum, since the evaluation is a score",
        "Set minimum, and remove maximum.",
    )
    yield _needs(
        "publish",
        f"!has(self.checkpoint.keepBest) || !({_LOSS}) || self.publish.all(one, has(one.maximum) && !has(one.minimum))",
        "have a maximum in each entry and no minimum, since the evaluation is a loss",
        "Set maximum, and remove minimum.",
    )
    yield _needs(
        "publish",
        "self.publish.all(one, self.publish.exists_one(other, other.name == one.name))",
        "have a different name in each entry",
        "Rename one of them.",
    )
    yield _needs(
        "checkpoint.uri",
        "self.checkpoint.uri.startsWith('s3://')",
        "be in s3:// with publish: the servers download the adapter from there",
        "Store the checkpoints in s3://, or remove publish.",
    )
    yield _needs(
        "checkpoint.keepAll",
        "self.checkpoint.keepAll",
        "be true with publish: servers read the files again whenever their pods start",
        "Set keepAll: true.",
    )
    yield _needs(
        "checkpoint.deletionPolicy",
        "self.checkpoint.deletionPolicy == 'Retain'",
        "be Retain with publish: what is served stays when the job is deleted, and so must its files",
        "Set deletionPolicy: Retain, or remove publish first, which withdraws the adapters.",
    )
    yield _needs(
        "checkpoint.resume",
        "self.checkpoint.resume == 'Auto'",
        "be Auto with publish: a start from the beginning deletes files that are served",
        "Set resume: Auto, or use another metadata.name.",
    )
    yield _needs(
        "adapter.dora",
        "!self.adapter.dora",
        "be false with publish, since vLLM serves no DoRA",
        "Remove dora, or publish; lorarl merge makes a whole model of such an adapter.",
    )
    yield _needs(
        "model.quantization",
        "self.model.quantization == 'none'",
        "be none with publish, since the servers have the base as its files are",
        "Remove quantization, or publish; lorarl merge makes a whole model of such an adapter.",
    )


def _needs(field: str, cel: str, must: str, hint: str) -> Rule:
    return Rule(field, f"!has(self.publish) || {cel}", must, hint)
