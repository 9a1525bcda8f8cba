"""How rewards are made and become a loss."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model


def _only_grpo(field: str, what: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.type == 'grpo'",
        f"{field} only with type grpo ({what})",
        f"remove {field}, or set algorithm.type to grpo",
    )


class AlgorithmSpec(Model):
    """How rewards become a loss. Fields that begin with a type's name are used by that type alone."""

    type: Literal["grpo", "sft"] = Field(
        "grpo",
        description="grpo: group-relative policy optimisation (arXiv:2402.03300), loss averaged over tokens. "
        "sft: cross-entropy on the answers; needs neither reward nor rollouts.",
    )
    group_size: int | None = Field(
        None,
        ge=2,
        le=1024,
        description="grpo: completions a prompt; 8 when absent. One completion has no group to be compared with.",
        examples=[8],
    )
    clip_range: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="grpo: the probability ratio is clipped to 1 - clipRange .. 1 + clipRange; 0.2 when absent.",
        examples=[0.2],
    )
    kl_coefficient: float | None = Field(
        None,
        ge=0.0,
        le=10.0,
        description="grpo: weight of the KL penalty to the base model; 0 (no penalty) when absent.",
        examples=[0.001],
    )
    updates_per_step: int | None = Field(
        None,
        ge=1,
        le=64,
        description="grpo: optimizer updates made of one step's rollouts, each on an equal share of the prompts; 1 when absent.",
        examples=[1],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _only_grpo("groupSize", "sft has no groups"),
        _only_grpo("clipRange", "sft has no probability ratio"),
        _only_grpo("klCoefficient", "sft has no KL penalty"),
        _only_grpo("updatesPerStep", "sft makes one update a step"),
    )

    @property
    def effective_group_size(self) -> int:
        """Completions a prompt; 1 for sft, whose one completion is the answer."""
        return 1 if self.type == "sft" else self.group_size or 8

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
        """Optimizer updates a step."""
        return self.updates_per_step or 1


class RewardSpec(Model):
    """How a completion is scored. Exactly one of type and function."""

    type: Literal["exact", "numeric", "regex", "math_verify"] | None = Field(
        None,
        description="exact: the completion, stripped, equals the answer. numeric: the last number in it equals the answer's last number. "
        "regex: what pattern finds equals the answer. math_verify: mathematically equal, by the package math-verify. 1 when so, else 0.",
        examples=["exact"],
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="regex: Python pattern searched in the completion; its first group (or the whole match) is compared.",
        examples=["####\\s*(-?\\d+)"],
    )
    tolerance: float | None = Field(
        None,
        ge=0.0,
        le=1e12,
        description="numeric: largest accepted absolute difference; 0 when absent.",
        examples=[0.001],
    )
    function: str | None = Field(
        None,
        max_length=256,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$",
        description="A Python function package.module:function(prompt, completion, answer, row) -> float, sync or async. It is found on "
        "the Python path and beside the manifest.",
        examples=["my_package.rewards:score"],
        json_schema_extra={"expected": "package.module:function"},
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0.0,
        le=3600.0,
        description="Longest time for scoring one completion, in seconds; past it that sample is left out.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "type",
            "has(self.type) != has(self.__function__)",
            "exactly one of reward.type and reward.function",
            "keep type for a built-in reward (exact, numeric, regex, math_verify), or function for your own",
        ),
        Rule(
            "pattern",
            "!has(self.pattern) || (has(self.type) && self.type == 'regex')",
            "pattern only with reward.type regex",
            "remove pattern, or set reward.type to regex",
        ),
        Rule(
            "pattern",
            "!has(self.type) || self.type != 'regex' || has(self.pattern)",
            "a pattern with reward.type regex",
            r"add one, e.g. pattern: '####\s*(-?\d+)'",
        ),
        Rule(
            "tolerance",
            "!has(self.tolerance) || (has(self.type) && self.type == 'numeric')",
            "tolerance only with reward.type numeric",
            "remove tolerance, or set reward.type to numeric",
        ),
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        """A rule cannot say this: CEL's regular expressions (RE2) are others than Python's."""
        try:
            re.compile(pattern or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise PydanticCustomError("pattern", "a Python regular expression ({why})", {"why": str(error)}) from error
        return pattern

    @property
    def effective_tolerance(self) -> float:
        """Largest accepted absolute difference of numeric."""
        return self.tolerance or 0.0
