"""How completions are scored, and how rewards become a loss."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model


def _only_grpo(field: str, why: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.type == 'grpo'",
        f"not be set unless type is grpo ({why})",
        f"Remove {field}, or set algorithm.type to grpo.",
    )


class AlgorithmSpec(Model):
    """How rewards become a loss. A field whose description starts with a type is used only by that type."""

    type: Literal["grpo", "sft"] = Field(
        "grpo",
        description="grpo: group-relative policy optimisation (arXiv:2402.03300), with the loss averaged over tokens. "
        "sft: cross-entropy on the answers. It needs neither a reward nor rollouts.",
    )
    group_size: int | None = Field(
        None,
        ge=2,
        le=1024,
        description="grpo: completions per prompt. Default: 8. A single completion has no group to compare it with.",
        examples=[8],
    )
    clip_range: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="grpo: the probability ratio is clipped to 1 - clipRange .. 1 + clipRange. Default: 0.2.",
        examples=[0.2],
    )
    kl_coefficient: float | None = Field(
        None,
        ge=0.0,
        le=10.0,
        description="grpo: weight of the KL penalty to the base model. Default: 0, no penalty.",
        examples=[0.001],
    )
    updates_per_step: int | None = Field(
        None,
        ge=1,
        le=64,
        description="grpo: optimizer updates from one step's rollouts, each on an equal share of the prompts. "
        "Default: 1.",
        examples=[1],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        _only_grpo("groupSize", "sft has no groups"),
        _only_grpo("clipRange", "sft has no probability ratio"),
        _only_grpo("klCoefficient", "sft has no KL penalty"),
        _only_grpo("updatesPerStep", "sft does one update per step"),
    )

    @property
    def effective_group_size(self) -> int:
        """Completions per prompt; 1 for sft, whose only completion is the answer."""
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
        """Optimizer updates per step."""
        return self.updates_per_step or 1


class RewardSpec(Model):
    """How a completion is scored. Set exactly one of type and function."""

    type: Literal["exact", "numeric", "regex", "math_verify"] | None = Field(
        None,
        description="exact: the stripped completion equals the answer. numeric: its last number equals the answer's "
        "last number. regex: the match of pattern equals the answer. math_verify: it is mathematically equal, "
        "according to the package math-verify. The reward is 1 if so, otherwise 0.",
        examples=["exact"],
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="regex: Python pattern to search in the completion. Its first group, or else the whole match, is "
        "compared.",
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
        "It is looked up on the Python path and beside the manifest.",
        examples=["my_package.rewards:score"],
        json_schema_extra={"expected": "package.module:function"},
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0.0,
        le=3600.0,
        description="Longest time for scoring one completion, in seconds. After that the sample is left out.",
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
            "has(self.type) != has(self.__function__)",
            "be set if reward.function is not, and only then",
            "Set type for a built-in reward (exact, numeric, regex, math_verify), or function for your own.",
        ),
        Rule(
            "pattern",
            "!has(self.pattern) || (has(self.type) && self.type == 'regex')",
            "not be set unless reward.type is regex",
            "Remove pattern, or set reward.type to regex.",
        ),
        Rule(
            "pattern",
            "!has(self.type) || self.type != 'regex' || has(self.pattern)",
            "be set if reward.type is regex",
            r"Add a pattern, for example pattern: '####\s*(-?\d+)'.",
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
