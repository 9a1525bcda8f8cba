"""What plays episodes: an environment on this machine, or in pods of the job. A run uses both in the same way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.cells import Prompt
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.scores import Cause

FIELD = "spec.environment"


class EpisodeFailedError(Exception):
    """The class failed in an episode, which has no reward then."""

    def __init__(self, cause: Cause, message: str) -> None:
        """Say why, as `Outcome.failed` does."""
        super().__init__(message)
        self.cause, self.message = cause, message


@dataclass(frozen=True)
class Answer:
    """What an environment says to a turn of the model.

    Attributes:
        text: what the model sees next; empty if the episode is done.
        reward: of this turn; None if it said nothing of one.
    """

    text: str
    done: bool
    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What answers a tool call.

    Attributes:
        fault: `malformed` or `failed` if the text is an error; empty otherwise.
    """

    text: str
    fault: str


class OpenEpisode(Protocol):
    """One episode while it is played. Each method raises EpisodeFailedError if the environment fails in it.

    Attributes:
        seconds: spent in the environment so far.
    """

    seconds: float

    async def reset(self, row: Mapping[str, Any]) -> Prompt:
        """Return what opens the episode."""

    async def step(self, text: str) -> Answer:
        """Return what the environment says to a turn of the model."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Return what answers the call of a tool."""

    async def play(self, row: Mapping[str, Any], base_url: str, key: str, model: str) -> Answer:
        """Let an agent play the whole episode with the model at this URL; return its reward."""

    def waits_for_the_model(self) -> AbstractContextManager[None]:
        """Stop the clock of an agent while the model makes its turns, and begin a new time limit after that."""


class Plays(ABC):
    """An environment. It is a `Judge`: call `ready` before the first episode, and `close` at the end."""

    field = FIELD

    @property
    @abstractmethod
    def tools(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, once it is ready; empty with a class."""

    @property
    @abstractmethod
    def tasks(self) -> int | None:
        """Number of tasks of a taskset, once it is ready; None if there is no end of them, or no taskset."""

    @property
    @abstractmethod
    def named(self) -> str:
        """What plays, as the manifest names it."""

    @property
    @abstractmethod
    def sees_us_at(self) -> str:
        """The address by which an agent that plays reaches this process."""

    @abstractmethod
    def warm_up(self) -> None: ...

    @abstractmethod
    async def ready(self) -> None:
        """Wait until the class, the agent or the tools are imported.

        Raises:
            InputError: there is no such module, class or function, it lacks what it needs, or importing its module
                fails or hangs.
        """

    @abstractmethod
    def episode(self, seed: int) -> AbstractAsyncContextManager[OpenEpisode]:
        """Open an episode, whose global random numbers have this seed. All that it started ends with the block.

        Raises:
            EpisodeFailedError: no process could be made for it.
        """

    @abstractmethod
    def close(self) -> None: ...

    def require_tasks(self, path: str, source: DataSource) -> None:
        """Refuse a source of rows that numbers more tasks than there are. Call `ready` before.

        `path`: of the source in the manifest.

        Raises:
            InputError: it does.
        """
        if self.tasks is None or source.episodes is None:
            return
        seed, size = source.episodes.seed, source.episodes.size
        if seed + size > self.tasks:
            raise InputError(
                f"{path}.episodes",
                f"tasks {seed:,} to {seed + size - 1:,} of {self.named}, which has {self.tasks:,}",
                f"tasks from 0 to {self.tasks - 1:,}",
                f"Set size to {self.tasks - seed} or less." if seed < self.tasks else "Lower seed and size.",
            )
