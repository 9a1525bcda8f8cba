"""How completions are scored, and how rewards become a loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

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
    SapoSpec,
)
from lorarl_api.v1alpha1.algorithm_types import (
    CLIPPED,
    FROM_DATA,
    OPTION_GROUPS,
    USUAL_AGGREGATION,
    WITHOUT_GROUPS,
    AlgorithmType,
    LossAggregation,
    description,
)
from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.reward_source import RewardSource
from lorarl_api.v1alpha1.scoring import CodeReward, GymTask, LengthPenalty, RepetitionPenalty, ServerReward


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
        description="Completions per prompt; not for sft and dpo. Default: 8. A single completion has no group to "
        "compare it with, so 1 is for reinforce, reinforce_plus_plus and distillation alone. Default for the last: 1.",
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
    )

    @property
    def effective_group_size(self) -> int:
        """Completions per prompt; 1 for sft, whose only completion is the answer, and 2 for dpo: pairs. A teacher
        compares nothing, so distillation has 1 unless the manifest says otherwise.
        """
        own = {"sft": 1, "dpo": 2}
        usual = 1 if self.type == "distillation" else 8
        return own.get(self.type) or self.group_size or usual

    @property
    def from_data(self) -> bool:
        """Whether it learns from the data's own answers, and generates nothing to train on."""
        return self.type in FROM_DATA

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


_WAYS = ("type", "__function__", "code", "server", "reasoningGym", "length", "repetition")
"""The fields of a reward of which exactly one is set, as CEL writes them."""


class RewardSpec(Model):
    """How a completion is scored.

    Set exactly one of type, function, code, server, reasoningGym, length and repetition.
    """

    type: Literal["exact", "numeric", "regex", "math_verify", "format"] | None = Field(
        None,
        description="exact: the stripped completion equals the answer. numeric: its last number equals the answer's "
        "last number. regex: the match of pattern equals the answer. math_verify: it is mathematically equal, "
        "according to the package math-verify. format: the whole stripped completion matches pattern, whatever the "
        "answer. The reward is 1 if so, otherwise 0.",
        examples=["exact"],
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="regex: Python pattern to search in the completion. Its first group, or else the whole match, is "
        "compared. format: Python pattern of the whole completion, in which . matches the end of a line too.",
        examples=["####\\s*(-?\\d+)"],
    )
    tolerance: float | None = Field(
        None,
        ge=0.0,
        le=1e12,
        description="numeric: largest accepted absolute difference. Default: 0.",
        examples=[0.001],
    )
    function: str | None = Field(
        None,
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$",
        description="A Python function package.module:function(prompt, completion, answer, row), sync or async. It "
        "returns a number, or a mapping with the number score and further numbers, which are recorded as components. "
        "If it has a parameter truncated, that says whether the completion was cut off at rollout.maxResponseTokens. "
        "It is looked up in source, or else on the Python path and beside the manifest.",
        examples=["my_package.rewards:score"],
        json_schema_extra={"expected": "package.module:function"},
    )
    source: RewardSource | None = Field(
        None, description="Where the code of the function is, if it is neither installed nor beside the manifest."
    )
    code: CodeReward | None = Field(
        None, description="Run the completion's Python program against the row's tests, in a sandbox."
    )
    server: ServerReward | None = Field(None, description="Ask a judge or a reward model over HTTP.")
    reasoning_gym: GymTask | None = Field(
        None,
        description="Score by a task of the package reasoning-gym. The text between the last <answer> and </answer>, "
        "or else the whole completion, is compared with the row's columns answer and metadata. The package has to be "
        "installed: lorarl env add reasoning-gym.",
    )
    length: LengthPenalty | None = Field(
        None, description="A penalty of long completions, 0 to -1. Use it beside other rewards."
    )
    repetition: RepetitionPenalty | None = Field(
        None, description="A penalty of repetition, 0 to -1. Use it beside other rewards."
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0.0,
        le=3600.0,
        description="Longest time for scoring one completion, in seconds. After that the sample is left out. server: "
        "longest time of one request.",
    )
    max_failed_share: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Largest share of the completions of a step or an evaluation that may be left out because they "
        "could not be scored. If more are, the run stops and names the most common failure. With 1, only a step "
        "without any score stops it.",
        examples=[0.1],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "type",
            f"[{', '.join(f'has(self.{field})' for field in _WAYS)}].filter(given, given).size() == 1",
            "be set if none of function, code, server, reasoningGym, length and repetition is, and only then",
            "Set type for a built-in reward (exact, numeric, regex, math_verify, format), function for your own, code "
            "for programs, server for a judge, reasoningGym for its tasks, or length or repetition for a penalty.",
        ),
        Rule(
            "pattern",
            "!has(self.pattern) || (has(self.type) && self.type in ['regex', 'format'])",
            "not be set unless reward.type is regex or format",
            "Remove pattern, or set reward.type to regex or format.",
        ),
        Rule(
            "pattern",
            "!has(self.type) || !(self.type in ['regex', 'format']) || has(self.pattern)",
            "be set if reward.type is regex or format",
            r"Add a pattern, for example pattern: '####\s*(-?\d+)'.",
        ),
        Rule(
            "source",
            "!has(self.source) || has(self.__function__)",
            "not be set unless reward.function is",
            "Remove source, or name the function as module:function.",
        ),
        Rule(
            "tolerance",
            "!has(self.tolerance) || (has(self.type) && self.type == 'numeric')",
            "not be set unless reward.type is numeric",
            "Remove tolerance, or set reward.type to numeric.",
        ),
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        """A rule cannot check this: CEL's regular expressions (RE2) differ from Python's."""
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise PydanticCustomError("pattern", "a Python regular expression ({why})", {"why": str(error)}) from error
        return pattern

    @property
    def kind(self) -> str:
        """The function, the type, or the name of the field that is set."""
        if self.reasoning_gym:
            return f"reasoning-gym:{self.reasoning_gym}"
        if self.server:
            return f"{self.server.model} ({self.server.api})"
        named = {"code": self.code, "length": self.length, "repetition": self.repetition}
        return self.function or self.type or next(name for name, given in named.items() if given)

    @property
    def effective_tolerance(self) -> float:
        """Largest absolute difference that the type numeric accepts."""
        return self.tolerance or 0.0


class NamedReward(RewardSpec):
    """One of several rewards. Set exactly one of type and function."""

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="Name of the reward. Its mean is recorded as reward/NAME.",
        examples=["format"],
        json_schema_extra={"expected": "a name of letters, digits, _, . and -, at most 64 characters"},
    )
    weight: float = Field(
        1.0,
        ge=-1e6,
        le=1e6,
        description="What the reward is multiplied by in the sum. A negative weight is a penalty. A reward with weight "
        "0 is recorded only.",
        examples=[0.2],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        *RewardSpec.rules,
        Rule(
            "weight",
            "self.weight >= 0.0 || !(has(self.length) || has(self.repetition))",
            "be at least 0 for length and repetition, which are negative by themselves",
            "Remove the minus sign: a negative weight would reward what they punish.",
        ),
    )
