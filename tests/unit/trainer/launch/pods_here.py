"""Pods for an environment, all in this process: actors in place of Ray's, with real processes of environments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.launch.environment_actor import EnvironmentActor
from lorarl_trainer.launch.environment_pods import PodEnvironment
from lorarl_trainer.rewards.environment.playing import Plays
from lorarl_trainer.rewards.process import CodeFolders

SECONDS = 60.0
GAME = """
import os
import random
import time
from pathlib import Path


class Dice:
    "Each answer is a random number, and the last one adds up to the reward."

    def reset(self, row):
        self.sum = 0.0
        Path(row["folder"], f"{os.getpid()}").write_text("played")
        return f"row {row['name']}, {random.random()}"

    def step(self, text):
        self.sum += (number := random.random())
        return {"text": f"{text}: {number}", "reward": number, "done": text == "stop"}


class Clock(Dice):
    "It answers otherwise each time."

    def step(self, text):
        return {"text": str(time.monotonic_ns())}


class Falls(Dice):
    def step(self, text):
        os._exit(3)


def add(first: int, second: int) -> int:
    "Add two numbers.\\n\\nArgs:\\n    first: one.\\n    second: another."
    return first + second


def reaches(row, llm):
    return float("10.1.2.3" in os.environ["NO_PROXY"].split(","))


def play(row, llm):
    time.sleep(row["sleeps"])
    return 0.5
"""


class Actor:
    """What Ray's handle of an actor does, for one in this process."""

    def __init__(self, actor: EnvironmentActor) -> None:
        self.actor, self._dead = actor, asyncio.Event()
        self.calls: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any, **options: Any) -> asyncio.Task[Any]:
            self.calls.append(method)
            task = asyncio.create_task(self._called(method, arguments, options))
            self.tasks.add(task)
            return task

        return SimpleNamespace(remote=remote)

    async def _called(self, method: str, arguments: Any, options: Any) -> Any:
        given = [await each if isinstance(each, asyncio.Task) else each for each in arguments]
        call = asyncio.ensure_future(getattr(self.actor, method)(*given, **options))
        dies = asyncio.create_task(self._dead.wait())
        try:
            await asyncio.wait((call, dies), return_when=asyncio.FIRST_COMPLETED)
            if self._dead.is_set():
                raise ActorDiedError()
            return call.result()
        finally:
            call.cancel()
            dies.cancel()

    def die(self) -> None:
        self.actor._environment.close()
        self._dead.set()


class Pods:
    """Places for actors, of which each new one takes the next that is free."""

    def __init__(self, free: int = 99) -> None:
        self.actors: list[Actor] = []
        self.free = free

    async def of(self, method: str, number: int) -> Actor:
        """Wait until the actor with this number has had a call."""
        async with asyncio.timeout(SECONDS):
            while len(self.actors) <= number or method not in self.actors[number].calls:
                await asyncio.sleep(0.01)
        return self.actors[number]


def in_pods(tmp_path: Path, replicas: int = 1, **spec: Any) -> tuple[PodEnvironment, list[str]]:
    told: list[str] = []
    code = CodeFolders((str(tmp_path / "code"),), "s3://code")
    return PodEnvironment(EnvironmentSpec(**{"timeout_seconds": SECONDS, **spec}), code, replicas, told.append), told


@contextlib.asynccontextmanager
async def ready(environment: PodEnvironment) -> AsyncIterator[None]:
    async with asyncio.timeout(4 * SECONDS), environment.running(lambda: asyncio.sleep(0)):
        await environment.ready()
        yield


def row(tmp_path: Path, name: str = "a") -> dict[str, Any]:
    return {"name": name, "folder": str(tmp_path / "rows")}


async def played(
    environment: Plays, row: dict[str, Any], seed: int, between: Callable[[], Any] = lambda: None
) -> list[Any]:
    """What an environment says in an episode of three turns. `between`: is called after the first one."""
    async with environment.episode(seed) as episode:
        said: list[Any] = [await episode.reset(row), await episode.step("go")]
        between()
        return [*said, await episode.step("on"), await episode.step("stop")]
