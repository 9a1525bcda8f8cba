"""The settings of rewards that have some: code, servers, and penalties of length and repetition. Names of tasks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import FieldName, Model, SecretName, Uri, without_credentials

GymTask = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        pattern=r"^[a-z][a-z0-9_]*$",
        examples=["chain_sum"],
        json_schema_extra={"expected": "the name of a task of reasoning-gym, such as chain_sum"},
    ),
]


class CodeReward(Model):
    """Run the completion's Python program against the row's tests, in a sandbox."""

    tests_field: FieldName = Field(
        "tests",
        description="Column with the row's tests: a list of assertions, a list of {input, output}, or an object with "
        "the lists inputs and outputs; or one text with assertions, or with such JSON. With input and output, a "
        "test's standard input and what it should print.",
    )
    score: Literal["all", "share"] = Field(
        "all", description="all: 1 if every test passes, otherwise 0. share: the share of tests that pass."
    )
    seconds_per_test: float = Field(
        5.0,
        gt=0.0,
        le=600.0,
        description="Longest time for one test, in seconds. All tests of a completion together may take "
        "reward.timeoutSeconds; tests that are not over by then count as failed.",
    )
    memory_mib: int = Field(
        512,
        ge=64,
        le=65_536,
        alias="memoryMiB",
        description="Address space of a program, in MiB. As many programs as the driver has cores, at most 8, run at a "
        "time.",
    )
    require_landlock: bool = Field(
        True,
        description="Refuse a machine whose kernel has no Landlock. With false, programs on such a machine can read "
        "the files that the trainer's user can. They can write none, and have no network, in either case.",
    )


def _only_chat(field: str) -> Rule:
    return Rule(
        field,
        f"!has(self.{field}) || self.api == 'chat'",
        "not be set unless api is chat",
        f"Remove {field}: a model with a score is asked for nothing else.",
    )


class ApiServer(Model):
    """A server behind an OpenAI-compatible API. Each kind describes its own url."""

    url: Uri
    model: str = Field(
        min_length=1, max_length=256, description="Name of the model at the server.", examples=["Qwen/Qwen3-32B"]
    )
    concurrency: int = Field(32, ge=1, le=4096, description="Requests at a time.")
    credentials_secret: SecretName | None = Field(
        None, description="Name of a Secret with the key OPENAI_API_KEY. Default: none is sent."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "url",
            "self.url.matches(r'^https?://[^/].*$')",
            "be a URL that starts with http:// or https://",
            "Write it as http://HOST:PORT/v1.",
        ),
        without_credentials("url"),
    )


def retries_field(unless: str, nothing: str) -> Any:
    """The field for how often a request is repeated, which takes so long or gives nothing."""
    return Field(
        4,
        ge=0,
        le=100,
        description=f"How often a request is repeated if the server cannot be reached, takes longer than {unless}, has "
        f"the status 429 or 5xx, or gives no {nothing}. The pauses begin with half a second and double, or are as long "
        "as the server asks, but 30 s at most.",
    )


class ServerReward(ApiServer):
    """Ask a judge or a reward model over HTTP, by an API that OpenAI, vLLM and others have.

    A request that fails is repeated; a completion whose requests all fail is left out.
    """

    url: Uri = Field(
        description="Address of the API, to which api adds its path: http(s)://HOST/v1 for chat.",
        examples=["http://judge:8000/v1"],
    )
    api: Literal["chat", "classify", "pooling"] = Field(
        "chat",
        description="chat: a language model judges (/chat/completions). classify, pooling: a reward model with one "
        "score, as vLLM serves it (/classify, /pooling).",
    )
    instruction: str | None = Field(
        None,
        min_length=1,
        max_length=32_768,
        description="chat: what the judge is asked. {prompt}, {completion}, {answer} and {highest} are replaced. The "
        "last 'Score: NUMBER' of its reply counts. Default: a question for quality, with the answer as the reference.",
        examples=["Is this polite? From 0 to 10.\n{completion}\nEnd with: Score: NUMBER"],
    )
    highest: float | None = Field(
        None,
        gt=0.0,
        le=1e6,
        description="chat: the judge's highest score. The reward is its score, from 0, divided by this. Default: 10.",
        examples=[10],
    )
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="chat: longest reply, in tokens. Default: 512.", examples=[512]
    )
    retries: int = retries_field("reward.timeoutSeconds", "score")

    rules: ClassVar[tuple[Rule, ...]] = (
        *ApiServer.rules,
        _only_chat("instruction"),
        _only_chat("highest"),
        _only_chat("maxTokens"),
        Rule(
            "instruction",
            "!has(self.instruction) || self.instruction.contains('{completion}')",
            "contain {completion}",
            "Write {completion} where the judge should see it.",
        ),
    )

    @property
    def effective_highest(self) -> float:
        """The judge's highest score."""
        return self.highest or 10.0

    @property
    def effective_max_tokens(self) -> int:
        """Longest reply of a judge, in tokens."""
        return self.max_tokens or 512


class LengthPenalty(Model):
    """A penalty of long completions: 0 up to freeTokens, -1 from maxTokens, and a straight line between them."""

    free_tokens: int = Field(
        ge=0, le=10_000_000, description="Tokens of a completion that cost nothing.", examples=[768]
    )
    max_tokens: int = Field(
        ge=1,
        le=10_000_000,
        description="Tokens from which the reward is -1, for example rollout.maxResponseTokens. The token that ends a "
        "completion counts.",
        examples=[1024],
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "maxTokens",
            "self.freeTokens < self.maxTokens",
            "be more than freeTokens",
            "Raise maxTokens, or lower freeTokens.",
        ),
    )


class RepetitionPenalty(Model):
    """A penalty of repetition: minus the share of a completion's runs of words that occurred in it before."""

    words: int = Field(
        4,
        ge=1,
        le=100,
        description="Words in a run, between white space and without regard to case. Shorter runs recur in any text.",
    )
