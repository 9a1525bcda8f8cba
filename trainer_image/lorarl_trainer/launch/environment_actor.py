"""What plays in a pod of `cluster.environments`: an actor of Ray, whose child processes the episodes are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.install.locks import installed_version
from lorarl_trainer.pods.drain import RUN_DIR
from lorarl_trainer.pods.output import show_in_pod_log
from lorarl_trainer.pods.owner import pod_name
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.environment.playing import EpisodeFailedError, OpenEpisode
from lorarl_trainer.rewards.process import CodeFolders
from lorarl_trainer.rewards.scores import Cause

PACKAGE = "lorarl"
_NAME = "environment"


@dataclass(frozen=True)
class PackedCode:
    """The user's code, to be brought to another machine.

    Attributes:
        source: what it was copied from; empty if it is in the image there.
        files: the content of each by its path; none without a source.
    """

    source: str
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, code: CodeFolders) -> Self:
        """Read the files of a source. The user's own folders are not copied: an image has its own."""
        folders = [Path(folder) for folder in code.folders if code.source]
        files = [(folder, path) for folder in folders for path in folder.rglob("*") if path.is_file()]
        return cls(code.source, {path.relative_to(folder).as_posix(): path.read_bytes() for folder, path in files})

    def unpacked(self, parent: Path) -> CodeFolders:
        """Write the files to a new folder in `parent`."""
        if not self.source:
            return CodeFolders((str(Path.cwd()),))
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="code-", dir=parent))
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return CodeFolders((str(folder),), self.source)


class Place(NamedTuple):
    """Where an actor runs.

    Attributes:
        pod: its name.
        machine: Ray's id of it.
        version: of lorarl in its image; None if it is not installed there as a package.
    """

    pod: str
    machine: str
    version: str | None


class Reply(NamedTuple):
    """What came of a call of an episode.

    Attributes:
        value: what the environment said; None if it failed.
        failure: cause and message; None if it did not fail.
        seconds: that the environment took for it.
    """

    value: Any
    failure: tuple[Cause, str] | None
    seconds: float


@dataclass
class _Open:
    """An episode that is played here.

    Attributes:
        closing: ends it.
        episode: None until its process exists.
        told: the number of the newest news of its agent's clock.
        stopped: holds that clock while it is stopped.
    """

    closing: contextlib.AsyncExitStack
    episode: OpenEpisode | None = None
    told: int = -1
    stopped: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)


class EnvironmentActor:
    """Plays episodes. All methods run in the event loop of Ray's actor."""

    def __init__(self, spec: EnvironmentSpec, code: PackedCode) -> None:
        """Start to import the user's code."""
        show_in_pod_log(_NAME, "What the environment prints follows.")
        self._environment = Environment(spec, code.unpacked(Path(os.environ[RUN_DIR]).absolute() / _NAME))
        self._environment.warm_up()
        self._episodes: dict[int, _Open] = {}

    async def place(self) -> Place:
        """Return where this actor runs."""
        import ray

        return Place(pod_name(), ray.get_runtime_context().get_node_id(), installed_version(PACKAGE))

    async def ready(self) -> tuple[list[dict[str, Any]], int | None]:
        """Return `tools` and `tasks` of the environment. Raises as `Plays.ready` does."""
        await self._environment.ready()
        return self._environment.tools, self._environment.tasks

    async def ended(self) -> None:
        """Never return: this call fails when the actor ends."""
        await asyncio.Event().wait()

    async def begin(self, number: int, seed: int) -> Reply:
        """Open an episode with this number, which no other has."""
        one = self._episodes[number] = _Open(contextlib.AsyncExitStack())
        try:
            one.episode = await one.closing.enter_async_context(self._environment.episode(seed))
        except EpisodeFailedError as failed:
            return Reply(None, (failed.cause, failed.message), 0.0)
        return Reply(None, None, 0.0)

    async def answer(self, number: int, method: str, given: Sequence[Any]) -> Reply:
        """Call a method of `OpenEpisode`."""
        episode = self._episodes[number].episode
        assert episode is not None, "it has begun"
        before = episode.seconds
        try:
            value = await getattr(episode, method)(*given)
        except EpisodeFailedError as failed:
            return Reply(None, (failed.cause, failed.message), episode.seconds - before)
        return Reply(value, None, episode.seconds - before)

    async def clock(self, number: int, news: int, *, stops: bool) -> None:
        """Stop the clock of an agent, or let it run on: see `OpenEpisode.waits_for_the_model`.

        `news`: counts these calls, which may not arrive in their order. Only the newest one matters.
        """
        one = self._episodes.get(number)
        if one is None or one.episode is None or news < one.told:
            return
        one.told = news
        one.stopped.close()
        if stops:
            one.stopped.enter_context(one.episode.waits_for_the_model())

    async def end(self, number: int, _: Reply) -> None:
        """End an episode and all that it has started. With the reply to `begin`, this call cannot overtake it."""
        one = self._episodes.pop(number)
        one.stopped.close()
        await one.closing.aclose()

    async def close(self) -> None:
        """End the environment's processes, and all that they have started."""
        await asyncio.to_thread(self._environment.close)
