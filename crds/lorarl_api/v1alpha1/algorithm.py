"""How rewards become a loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    ABOUT,
    OPTION_GROUPS,
    About,
    AlgorithmType,
    LossAggregation,
    description,
    is_one_of,
    listed,
    those,
)
from lorarl_api.v1alpha1.common import Model

_WITHOUT_GROUPS = those(lambda about: not about.compares)
_ALONE = those(lambda about: not about.compares and "groupSize" not in about.without)
_CLIPPED = those(lambda about: about.clipped)
_REFILLED = those(lambda about: about.refills)


def _is(types: Iterable[str]) -> str:
    return is_one_of("self.type", types)


def _refusing(field: str) -> tuple[str, ...]:
    """The types that refuse a field, each by a rule that says why."""
    return those(lambda about: field in about.without)


def _refused() -> Iterator[Rule]:
    for kind, about in ABOUT.items():
        instead = ", or set algorithm.type to grpo."
        if about.options:
            options = listed(str(one.alias) for one in about.options.model_fields.values())
            instead = f". The options of {kind} are {options}, in the group {kind}."
        for field, why in about.without.items():
            yield Rule(
                field,
                f"!has(self.{field}) || self.type != '{kind}'",
                f"not be set if type is {kind} ({why})",
                f"Remove {field}{instead}",
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
        description=f"Completions per prompt; not for {listed(_refusing('groupSize'))}. Default: 8, and 1 for "
        f"{listed(those(lambda about: about.group_size == 1 and 'groupSize' not in about.without))}. A single "
        "completion has no group to compare it with, so 1 is for "
        f"{listed(_ALONE)} alone.",
        examples=[8],
    )
    clip_range: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="The probability ratio is clipped to 1 - clipRange .. 1 + clipRange. Default: 0.2. "
        f"{listed(those(lambda about: not about.clipped))} do without.",
        examples=[0.2],
    )
    kl_coefficient: float | None = Field(
        None,
        ge=0.0,
        le=10.0,
        description=f"Weight of the KL penalty to the base model; not for {listed(_refusing('klCoefficient'))}. "
        "Default: 0, no penalty.",
        examples=[0.001],
    )
    updates_per_step: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Optimizer updates from one step's rollouts, each on an equal share of the prompts; not for "
        f"{listed(_refusing('updatesPerStep'))}. Default: 1.",
        examples=[1],
    )
    loss_aggregation: LossAggregation | None = Field(
        None,
        description="How the losses of tokens become one number. token_mean: every token of the update counts alike. "
        "sequence_mean: every completion counts alike. constant: the sum over a completion's tokens is divided by "
        "rollout.maxResponseTokens. Default: "
        f"constant for {listed(those(lambda about: about.aggregation == 'constant'))}, "
        f"sequence_mean for {listed(those(lambda about: about.aggregation == 'sequence_mean'))}, otherwise "
        f"token_mean. Not for {listed(_refusing('lossAggregation'))}.",
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
        f"{listed(_refusing('correction'))}. Default: none. Later updates of a step then take the engine's "
        "log-probabilities for the old policy's.",
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
        *_refused(),
        Rule(
            "groupSize",
            f"!has(self.groupSize) || self.groupSize > 1 || {_is(_WITHOUT_GROUPS)}",
            f"be at least 2 unless type is {listed(_ALONE, 'or')}, "
            "since the others compare a completion with its group",
            "Use a value such as 8, or set algorithm.type to reinforce_plus_plus.",
        ),
        Rule(
            "clipRange",
            f"!has(self.clipRange) || {_is([*_CLIPPED, *_refusing('clipRange')])}",
            f"not be set unless type is one of {', '.join(_CLIPPED)}",
            "Remove clipRange. The group with the name of the type has its own limits.",
        ),
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
            f"!has(self.maxRefills) || {_is(_REFILLED)}",
            f"not be set unless type is one of {', '.join(_REFILLED)}",
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
    def about(self) -> About:
        """The algorithm's row."""
        return ABOUT[self.type]

    @property
    def effective_group_size(self) -> int:
        """Completions per prompt; for sft the answer alone, and for dpo a pair of them."""
        return self.group_size or self.about.group_size

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
        return self.loss_aggregation or self.about.aggregation
