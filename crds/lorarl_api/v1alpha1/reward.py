"""How completions are scored."""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.reward_source import RewardSource
from lorarl_api.v1alpha1.scoring import CodeReward, GymTask, LengthPenalty, RepetitionPenalty, ServerReward

_WAYS = ("type", "__function__", "code", "server", "reasoningGym", "length", "repetition")
"""The fields of a reward of which exactly one is set, as CEL writes them."""
_GIVEN = f"[{', '.join(f'has(self.{field})' for field in _WAYS)}].filter(given, given).size()"


class RewardSpec(Model):
    """How a completion is scored.

    Set exactly one of type, function, code, server, reasoningGym, length and repetition.
    """

    type: Literal["exact", "numeric", "regex", "math_verify", "format"] | None = Field(
        None,
        description="exact: the stripped completion equals the answer. numeric: its last number equals the answer, or "
        "it ends with an answer that is more than one number. regex: the match of pattern equals the answer. "
        "math_verify: it is mathematically equal, according to the package math-verify. format: the whole stripped "
        "completion matches pattern, whatever the answer. The reward is 1 if so, otherwise 0.",
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
            f"{_GIVEN} > 0",
            "be set if none of function, code, server, reasoningGym, length and repetition is",
            "Set type for a built-in reward (exact, numeric, regex, math_verify, format), function for your own, code "
            "for programs, server for a judge, reasoningGym for its tasks, or length or repetition for a penalty.",
        ),
        Rule(
            "type",
            f"{_GIVEN} < 2",
            "be alone: only one of type, function, code, server, reasoningGym, length and repetition may be set",
            "Keep one of them, and remove the others.",
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
    def functions(self) -> list[str]:
        """The name of the function, if that is what scores."""
        return [self.function] if self.function else []

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
