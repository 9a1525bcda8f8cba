"""How rewards become a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_options import (
    CispoSpec,
    CorrectionSpec,
    DapoSpec,
    DistillationSpec,
    DpoSpec,
    GrpoSpec,
    GspoSpec,
    KlSpec,
    PpoSpec,
    SapoSpec,
)
from lorarl_api.v1alpha1.algorithm_types import (
    CLIPPED,
    FROM_DATA,
    OPTION_GROUPS,
    REFILLED,
    USUAL_AGGREGATION,
    WITHOUT_GROUPS,
    AlgorithmType,
    LossAggregation,
    description,
)
from lorarl_api.v1alpha1.common import Model


def _in(types: Sequence[str]) -> str:
    """The condition that the type is one of some."""
    return f"self.type in [{', '.join(repr(one) for one in types)}]"


def _not_for_sft(field: str, why: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.type != 'sft'",
        f"not be set if type is sft ({why})",
        f"Remove {field}, or set algorithm.type to grpo.",
    )


def _not_for_dpo(field: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.type != 'dpo'",
        "not be set if type is dpo, which compares the two answers of a pair once per step",
        f"Remove {field}. The options of dpo are beta and labelSmoothing, in the group dpo.",
    )


def _only_with_its_type(group: str) -> Rule:
    return Rule(
        group,
        f"!has(self.{group}) || self.type == '{group}'",
        f"not be set unless type is {group}",
        f"Remove {group}, or set algorithm.type to {group}.",
    )


class AlgorithmSpec(Model):
    """How rewards become a loss. A group with the name of a type has the options of that type alone."""

    type: AlgorithmType = Field("grpo", description=description())
    group_size: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Completions per prompt; not for sft and dpo. Default: 8, and 1 for ppo and distillation. A single "
        "completion has no group to compare it with, so 1 is for ppo, reinforce, reinforce_plus_plus and distillation "
        "alone.",
        examples=[8],
    )
    clip_range: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="The probability ratio is clipped to 1 - clipRange .. 1 + clipRange. Default: 0.2. "
        "reinforce, gspo, cispo, sapo, sft and dpo do without.",
        examples=[0.2],
    )
    kl_coefficient: float | None = Field(
        None,
        ge=0.0,
        le=10.0,
        description="Weight of the KL penalty to the base model; not for sft and dpo. Default: 0, no penalty.",
        examples=[0.001],
    )
    updates_per_step: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Optimizer updates from one step's rollouts, each on an equal share of the prompts; not for sft "
        "and dpo. Default: 1.",
        examples=[1],
    )
    loss_aggregation: LossAggregation | None = Field(
        None,
        description="How the losses of tokens become one number. token_mean: every token of the update counts alike. "
        "sequence_mean: every completion counts alike. constant: the sum over a completion's tokens is divided by "
        "rollout.maxResponseTokens. Default: constant for dr_grpo, sequence_mean for gspo and sapo, otherwise "
        "token_mean. Not for sft and dpo.",
        examples=["token_mean"],
    )
    max_refills: int | None = Field(
        None,
        ge=0,
        le=100,
        description="Dynamic sampling: how many times per step more prompts are generated for, in place of groups "
        "whose completions all have the same reward. Default: 0, which replaces none. For types that compare a "
        "completion with its group; dapo has dapo.maxRefills.",
        examples=[3],
    )
    kl: KlSpec | None = Field(None, description="How the KL penalty works; with a klCoefficient above 0.")
    correction: CorrectionSpec | None = Field(
        None,
        description="Correction for the difference between the engine's policy and the one that is trained; not for "
        "sft and dpo. Default: none. Later updates of a step then take the engine's log-probabilities for the old "
        "policy's.",
    )
    grpo: GrpoSpec | None = Field(None, description="Options of the type grpo.")
    dapo: DapoSpec | None = Field(None, description="Options of the type dapo.")
    gspo: GspoSpec | None = Field(None, description="Options of the type gspo.")
    cispo: CispoSpec | None = Field(None, description="Options of the type cispo.")
    sapo: SapoSpec | None = Field(None, description="Options of the type sapo.")
    ppo: PpoSpec | None = Field(None, description="Options of the type ppo.")
    distillation: DistillationSpec | None = Field(
        None, description="The teacher of the type distillation, which requires it."
    )
    dpo: DpoSpec | None = Field(None, description="Options of the type dpo.")

    rules: ClassVar[tuple[Rule, ...]] = (
        _not_for_sft("groupSize", "sft has no groups"),
        Rule(
            "groupSize",
            f"!has(self.groupSize) || self.groupSize > 1 || {_in([*WITHOUT_GROUPS, 'sft'])}",
            f"be at least 2 unless type is {' or '.join(WITHOUT_GROUPS)}, "
            "since the others compare a completion with its group",
            "Use a value such as 8, or set algorithm.type to reinforce_plus_plus.",
        ),
        _not_for_sft("clipRange", "sft has no probability ratio"),
        Rule(
            "clipRange",
            f"!has(self.clipRange) || {_in([*CLIPPED, 'sft'])}",
            f"not be set unless type is one of {', '.join(CLIPPED)}",
            "Remove clipRange. The group with the name of the type has its own limits.",
        ),
        _not_for_sft("klCoefficient", "sft has no KL penalty"),
        _not_for_sft("updatesPerStep", "sft does one update per step"),
        _not_for_sft("lossAggregation", "sft averages over tokens"),
        _not_for_sft("correction", "sft samples nothing"),
        *(map(_not_for_dpo, ("groupSize", "klCoefficient", "updatesPerStep", "lossAggregation", "correction"))),
        Rule(
            "kl",
            "!has(self.kl) || (has(self.klCoefficient) && self.klCoefficient > 0.0)",
            "not be set unless klCoefficient is above 0",
            "Set klCoefficient, for example to 0.001, or remove kl.",
        ),
        Rule(
            "correction",
            "!has(self.correction) || self.type != 'gspo' || !("
            "(has(self.correction.weights) && self.correction.weights == 'token') || "
            "(has(self.correction.mask) && self.correction.mask == 'token') || "
            "(has(self.correction.preset) && self.correction.preset.contains('token')))",
            "not be by token if type is gspo, whose ratio is a whole completion's",
            "Use decoupled_seq_is or decoupled_geo_rs.",
        ),
        Rule(
            "maxRefills",
            f"!has(self.maxRefills) || {_in(REFILLED)}",
            f"not be set unless type is one of {', '.join(REFILLED)}",
            "Remove maxRefills. dapo has dapo.maxRefills, and other types compare no group.",
        ),
        *(_only_with_its_type(one) for one in OPTION_GROUPS),
        Rule(
            "distillation",
            "self.type != 'distillation' || has(self.distillation)",
            "be set if type is distillation",
            "Name the teacher, for example distillation: {server: {url: 'http://teacher:8000/v1', model: NAME}}.",
        ),
        Rule(
            "kl",
            "!has(self.kl) || self.type != 'distillation' || self.kl.placement == 'loss'",
            "have the placement loss if type is distillation, which has no reward to subtract from",
            "Remove kl.placement.",
        ),
        Rule(
            "kl",
            "!has(self.kl) || self.type != 'maxrl' || self.kl.placement == 'loss'",
            "have the placement loss if type is maxrl, which divides by the mean reward: that may be next to 0 then",
            "Remove kl.placement, or choose another type.",
        ),
    )

    @property
    def effective_group_size(self) -> int:
        """Completions per prompt; 1 for sft, whose only completion is the answer, and 2 for dpo: pairs. A critic and a
        teacher compare nothing, so ppo and distillation have 1 unless the manifest says otherwise.
        """
        own, usual = {"sft": 1, "dpo": 2}, {"ppo": 1, "distillation": 1}
        return own.get(self.type) or self.group_size or usual.get(self.type, 8)

    @property
    def from_data(self) -> bool:
        """Whether it learns from the data's own answers, and generates nothing to train on."""
        return self.type in FROM_DATA

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained beside the policy."""
        return self.type == "ppo"

    @property
    def teacher_adapter(self) -> str | None:
        """The adapter that teaches, if one does."""
        return self.distillation.adapter if self.distillation else None

    @property
    def effective_clip_range(self) -> float:
        """Distance from 1 at which the probability ratio is clipped."""
        return 0.2 if self.clip_range is None else self.clip_range

    @property
    def effective_kl_coefficient(self) -> float:
        """Weight of the KL penalty; 0 means that no reference log-probabilities are needed."""
        return self.kl_coefficient or 0.0

    @property
    def effective_updates_per_step(self) -> int:
        """Optimizer updates per step."""
        return self.updates_per_step or 1

    @property
    def effective_loss_aggregation(self) -> LossAggregation:
        """How the losses of tokens become one number."""
        return self.loss_aggregation or USUAL_AGGREGATION.get(self.type, "token_mean")
