"""An environment that the model talks with for several turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import WITHOUT_REWARD, is_one_of, listed, those
from lorarl_api.v1alpha1.common import Model
from lorarl_api.v1alpha1.partial_rules import TRAINS_WITHOUT_REWARD
from lorarl_api.v1alpha1.reward_source import RewardSource

WITH_CRITIC = those(lambda about: about.critic)


ToolFormat = Literal["hermes", "qwen3_xml", "glm45", "llama3_json"]
_NAMED = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
_Tool = Annotated[
    str,
    Field(
        max_length=256,
        pattern=_NAMED,
        examples=["my_tools:search"],
        json_schema_extra={"expected": "package.module:function"},
    ),
]

_Listed = Annotated[
    str,
    Field(
        max_length=256,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$",
        json_schema_extra={"expected": "the name by which the package lists it"},
    ),
]
_SEQUENCES = 8
"""Room for an agent that shortens its history now and then, or has a few parts; more are likely a mistake."""
_WAYS = ("__function__", "tools", "agent", "textarena", "skyrlGym", "gymnasium", "verifiers", "openEnv")
_CALLS_MODEL = "(has(self.environment.agent) || has(self.environment.verifiers))"


class EnvironmentSpec(Model):
    """What answers the model turn by turn: tools, or a class, an agent, a package or a server that also rewards it.

    Set exactly one of function, tools, agent, textarena, skyrlGym, gymnasium, verifiers and openEnv.

    An episode is the prompt and all turns. rollout.maxPromptTokens is the limit of what opens it, and
    rollout.maxResponseTokens that of all that follows: what the model writes, and what it is answered.
    """

    function: str | None = Field(
        None,
        max_length=256,
        pattern=_NAMED,
        description="A Python class package.module:Class, made without arguments for each episode. Its reset(row) "
        "returns what opens the episode: a text, or chat messages. Its step(text) gets the model's turn, and returns a "
        "mapping: text is the answer that the model sees next, done ends the episode, and reward is a number. The "
        "rewards of an episode add up. Further numbers are recorded as components. Both may be async. The class is "
        "looked up in source, or else on the Python path and beside the manifest.",
        examples=["my_env:Episode"],
        json_schema_extra={"expected": "package.module:Class"},
    )
    tools: list[_Tool] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Python functions package.module:function that the model may call, beside a reward. The chat "
        "template shows the model their names, type hints and docstrings. Each call of a turn is answered by what "
        "the function returns: a text, or what JSON can hold. The first turn without a call ends the episode, and "
        "the reward scores it. Functions may be async. They are looked up as function is.",
        examples=[["my_tools:search"]],
    )
    agent: str | None = Field(
        None,
        max_length=256,
        pattern=_NAMED,
        description="A Python function package.module:function, called as play(row, llm) once for each episode, in the "
        "episode's own process. It calls the model as often as it likes, with any client of OpenAI's API: llm.base_url "
        "and llm.api_key lead to it, and llm.model is its name. It returns the episode's reward: a number, or a "
        "mapping with reward and further numbers, which are recorded as components. It may be async. It is looked up "
        "as function is.",
        examples=["my_agent:play"],
        json_schema_extra={"expected": "package.module:function"},
    )
    tool_format: ToolFormat | None = Field(
        None,
        description="How the model writes calls, by the names of vLLM's parsers. Default: found from the model's chat "
        "template.",
        examples=["hermes"],
    )
    textarena: _Listed | None = Field(
        None,
        description="A game for one player of the package textarena, which has to be installed: lorarl env add "
        "textarena==0.7.4.",
        examples=["GuessTheNumber-v0"],
    )
    skyrl_gym: _Listed | None = Field(
        None,
        description="An environment of the package skyrl-gym, which has to be installed: lorarl env add "
        "skyrl-gym==0.4.0. Its rows have the columns prompt and answer, or those of SkyRL's data sets.",
        examples=["gsm8k_multi_turn"],
    )
    gymnasium: _Listed | None = Field(
        None,
        description="An environment of the package gymnasium, or of yours that is registered there, whose "
        "observations are texts or can be drawn as text, and whose actions are texts or numbers. The package has to "
        "be installed: lorarl env add gymnasium==1.4.0.",
        examples=["FrozenLake-v1", "my_module:Maze-v0"],
    )
    verifiers: _Listed | None = Field(
        None,
        description="A taskset of the package verifiers, which has to be installed with it: lorarl env add "
        "verifiers==0.4.0 PACKAGE. A row's seed is the number of its task, from 0 on. The model plays it as an agent's "
        "episode, with the taskset's tools. The reward is that of verifiers, and its metrics are components.",
        examples=["my-taskset"],
    )
    open_env: str | None = Field(
        None,
        max_length=1024,
        pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$",
        description="URL of a server of OpenEnv, which is asked from the trainer's machine or pod. Each episode has a "
        "session there, so it must have environment.concurrency of them. The columns of a row are arguments of reset. "
        "If the environment's actions have one required text alone, it is the model's turn; otherwise a turn has to "
        "have JSON.",
        examples=["http://my-environment:8000"],
        json_schema_extra={"expected": "an address that starts with http:// or https://, such as http://HOST:8000"},
    )
    source: RewardSource | None = Field(
        None,
        description="Where the code of the class, the agent or the tools is, if neither installed nor beside the "
        "manifest.",
    )
    max_turns: int = Field(
        8,
        ge=1,
        le=1000,
        description="Turns of the model after which an episode ends, if it has not ended before. It keeps the rewards "
        "that it has, or the reward scores its last turn.",
    )
    max_turn_tokens: int | None = Field(
        None,
        ge=1,
        le=1_048_576,
        description="Tokens after which a turn of the model is cut off. That ends the episode, after a last "
        "step(text). Default: what is left of rollout.maxResponseTokens.",
        examples=[256],
    )
    max_sequences: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="Sequences of tokens that an episode of an agent or a taskset may have. A request that continues "
        "what was said continues its sequence, and any other request begins a further one. With 1, an episode is one "
        f"conversation. Default: {_SEQUENCES}.",
        examples=[16],
    )
    timeout_seconds: float = Field(
        10.0,
        gt=0.0,
        le=3600.0,
        description="Longest time of one call of reset, step or a tool, in seconds, or of an agent between two turns "
        "of the model. After that the process of the episode is ended, and the episode is left out. A tool is "
        "interrupted, and the model reads that.",
    )
    max_failed_share: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="Largest share of the episodes of a step or an evaluation that may be left out because the "
        "environment failed. If more are, the run stops and names the most common failure. With 1, only a step without "
        "any reward stops it.",
        examples=[0.1],
    )
    concurrency: int = Field(
        256,
        ge=1,
        le=4096,
        description="Episodes that are played at a time. Each has its own small process, which does nothing while "
        "the model writes.",
    )

    @property
    def calls_model(self) -> bool:
        """Whether it asks for the model's turns itself, as an agent and a taskset of verifiers do."""
        return self.agent is not None or self.verifiers is not None

    @property
    def most_sequences(self) -> int:
        """Sequences of tokens that an episode may have: one, unless it calls the model itself."""
        return (self.max_sequences or _SEQUENCES) if self.calls_model else 1

    @property
    def world(self) -> tuple[str, str] | None:
        """What a package or a server plays: the field that selects it, and its value; None with code of the user's."""
        named = {
            "textarena": self.textarena,
            "skyrlGym": self.skyrl_gym,
            "gymnasium": self.gymnasium,
            "verifiers": self.verifiers,
            "openEnv": self.open_env,
        }
        return next(((field, name) for field, name in named.items() if name), None)

    @property
    def functions(self) -> list[str]:
        """The names of the user's class, agent or tools; empty if a package or a server plays."""
        alone = self.function or self.agent
        return [alone] if alone else self.tools or []


ENVIRONMENT_CLUSTER_RULES: tuple[Rule, ...] = (
    Rule(
        "cluster.podTemplateOverrides.environment",
        "!has(self.cluster.podTemplateOverrides.environment) || has(self.cluster.environments)",
        "be absent without cluster.environments: the job has no pods for its environment",
        "Remove it, or add cluster.environments.",
    ),
)
"""What holds in a cluster alone."""


def environment_rules() -> Iterator[Rule]:
    """Yield what a job with an environment must not have beside it."""
    unless = "!has(self.environment)"
    yield Rule(
        "environment",
        f"{unless} || !({TRAINS_WITHOUT_REWARD})",
        f"not be set if algorithm.type is {listed(WITHOUT_REWARD, 'or')}, which learn from no rewards",
        "Remove environment, or set algorithm.type to grpo.",
    )
    yield Rule(
        "environment",
        f"{unless} || [{', '.join(f'has(self.environment.{way})' for way in _WAYS)}].exists_one(one, one)",
        "have exactly one of function, tools, agent, textarena, skyrlGym, gymnasium, verifiers and openEnv",
        "Set tools to let the model call functions beside a reward, function for a class that answers every turn, "
        "agent for a function that calls the model itself, openEnv for a server, or one of the others for an "
        "environment of a package.",
    )
    url = "!has(self.environment) || !has(self.environment.openEnv)"
    yield Rule(
        "environment.openEnv",
        f"{url} || !self.environment.openEnv.contains('@')",
        "not contain credentials",
        "Remove what is before @, and renew it. Servers that ask for a password cannot be used.",
    )
    for other in ("reward", "rewards"):
        yield Rule(
            other,
            f"{unless} || has(self.environment.tools) || !has(self.{other})",
            "not be set beside an environment without tools, which rewards its episodes itself",
            f"Remove {other}, and return its number from step, or from the agent, as reward.",
        )
    yield Rule(
        "environment.toolFormat",
        f"{unless} || !has(self.environment.toolFormat) || has(self.environment.tools) || {_CALLS_MODEL}",
        "be absent without tools, agent or verifiers, whose calls lorarl reads",
        "Remove toolFormat, or set environment.tools, agent or verifiers in place of what plays now.",
    )
    yield Rule(
        "environment.maxSequences",
        f"{unless} || !has(self.environment.maxSequences) || {_CALLS_MODEL}",
        "be absent without agent or verifiers: other episodes are one sequence of tokens",
        "Remove maxSequences, or set environment.agent or verifiers in place of what plays now.",
    )
    writes = "writes its messages"
    for part, shows in (("tools", "shows them to the model"), ("agent", writes), ("verifiers", writes)):
        yield Rule(
            f"environment.{part}",
            f"{unless} || !has(self.environment.{part}) || self.data.chatTemplate",
            f"have a chat template, which {shows}",
            "Remove data.chatTemplate: false.",
        )
    yield Rule(
        "environment",
        f"{unless} || !({is_one_of('self.algorithm.type', WITH_CRITIC)})",
        f"not be set if algorithm.type is {listed(WITH_CRITIC, 'or')}, whose critic knows only answers of one turn",
        "Set algorithm.type to grpo.",
    )
    yield Rule(
        "cluster.environments",
        "!has(self.cluster.environments) || has(self.environment)",
        "not be set without environment, whose episodes its pods play",
        "Remove cluster.environments, or add environment.",
    )
    yield Rule(
        "algorithm.dapo.overlongBufferTokens",
        f"{unless} || !has(self.algorithm.dapo) || !has(self.algorithm.dapo.overlongBufferTokens)",
        "not be set beside environment, whose own words it would count too",
        "Remove overlongBufferTokens, and let step return a smaller reward for long turns.",
    )
    yield Rule(
        "rollout.partial",
        f"{unless} || !has(self.rollout.partial)",
        "not be set beside environment: a step waits for its episodes",
        "Remove rollout.partial.",
    )
    yield Rule(
        "data.evals",
        f"{unless} || self.data.evals.all(e, !has(e.reward))",
        "have no reward beside environment, which plays and rewards the episodes of evaluations too",
        "Remove the reward of each evaluation.",
    )
    yield Rule(
        "environment.maxTurnTokens",
        f"{unless} || !has(self.environment.maxTurnTokens) || "
        "self.environment.maxTurnTokens <= self.rollout.maxResponseTokens",
        "be at most rollout.maxResponseTokens, which limits all turns together",
        "Lower maxTurnTokens, or raise rollout.maxResponseTokens.",
    )
