"""The trainer's side of an environment: episodes that are opened, answered, and cut when they take too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from multiprocessing.reduction import send_handle
from pathlib import Path
from typing import Any, ClassVar

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.data.cells import Prompt
from lorarl_trainer.errors import InputError
from lorarl_trainer.install.separate import SEPARATE, python_of, variable_of
from lorarl_trainer.rewards.environment.playing import FIELD, Answer, EpisodeFailedError, Plays, Result
from lorarl_trainer.rewards.environment.worker import CALL, MOST_CHARACTERS, PLAY, RESET, STEP
from lorarl_trainer.rewards.environment.worlds import class_of
from lorarl_trainer.rewards.output import Output
from lorarl_trainer.rewards.process import EXIT_SECONDS, START_SECONDS, CodeFolders, CodeProcess
from lorarl_trainer.threads import in_background

VERIFIERS = "verifiers"
LOOPBACK = "127.0.0.1"
_LONGEST_LINE = 12 * MOST_CHARACTERS + (1 << 16)
"""Bytes of a reply: JSON takes at most 12 for a character, and components come to it."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 1.0
"""Before a server is asked to reset once more: the first pause, and the longest of those that double."""
_GRACE_SECONDS = 5.0
"""A tool that takes too long is interrupted, if it can be. After so much more its process is ended."""


class _Process(CodeProcess):
    """A process that has imported the class, and forks for each episode."""

    program: ClassVar = Path(__file__).with_name("worker.py")
    expected: ClassVar = "a class package.module:Class with reset(self, row) and step(self, text)"
    variables: ClassVar[Mapping[str, str]] = {"PYTHONHASHSEED": "0"}  # sets of texts have the same order in each run

    def begin(self) -> socket.socket:
        """Let an episode begin; return our end of its connection. `ready` comes before.

        Raises:
            OSError: the process is gone.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            send_handle(self._open(), theirs.fileno(), None)
        return ours


class _ToolsProcess(_Process):
    """A process that has imported tools, and forks for each episode."""

    program: ClassVar = Path(__file__).with_name("tools.py")
    expected: ClassVar = "functions package.module:function with type hints and docstrings"


class _AgentProcess(_Process):
    """A process that has imported an agent, and forks for each episode."""

    program: ClassVar = Path(__file__).with_name("agent.py")
    expected: ClassVar = "a function package.module:function(row, llm)"


class _TasksetProcess(_Process):
    """A process that has imported verifiers and a taskset, with the Python of their environment."""

    program: ClassVar = Path(__file__).with_name("taskset.py")
    expected: ClassVar = "a taskset of verifiers that can be played here"
    slow: ClassVar = f"Wait (at most {START_SECONDS:g} s): each episode begins with what is imported now."

    def _python(self) -> str:
        if (python := python_of(VERIFIERS)) is None:
            got = f"{self._function}, but the package {VERIFIERS} is not installed"
            hint = f"Install it: lorarl env add {SEPARATE[VERIFIERS]} PACKAGE, with the package of the taskset. "
            raise InputError(self._field, got, self.expected, hint + "In a cluster, add it to the trainer's image.")
        if not python.exists():
            got = f"{self._function}, but {variable_of(VERIFIERS)} names {python}, which is not there"
            raise InputError(self._field, got, self.expected, f"Correct {variable_of(VERIFIERS)}, or unset it.")
        return str(python)

    def _search_path(self) -> list[str]:
        return list(self._code.folders)  # it adds them to its own: lorarl's packages would take the place of its own


class _WorldProcess(_Process):
    """A process that has imported what a package or a server plays, and forks for each episode."""

    expected: ClassVar = "an environment that can be played here"
    slow: ClassVar = f"Wait (at most {START_SECONDS:g} s)."


class Environment(Plays):
    """Plays episodes on this machine, with a class or an agent, or with tools."""

    def __init__(self, spec: EnvironmentSpec, code: CodeFolders, output: Output | None = None) -> None:
        """Nothing starts before `warm_up`.

        `code`: where class, agent or tools may be. `output`: gets what they print; None for this process's own output.
        """
        self._limit, self._output = spec.timeout_seconds, output or Output()
        kind: type[_Process]
        kind, field, played = _Process, "function", ",".join(spec.functions)
        if spec.verifiers is not None:
            kind, field, played = _TasksetProcess, VERIFIERS, spec.verifiers
        elif spec.world is not None:
            kind, field, played = _WorldProcess, spec.world[0], class_of(spec.world)
        elif spec.tools:
            kind, field = _ToolsProcess, "tools"
        elif spec.agent:
            kind, field = _AgentProcess, "agent"
        self._process = kind(played, code, spec.timeout_seconds, f"{FIELD}.{field}", self._output)
        self._beginning = asyncio.Lock()

    def warm_up(self) -> None:
        """Start the process, which imports the class meanwhile."""
        self._process.start()

    async def ready(self) -> None:
        async with self._beginning:
            await in_background(self._process.ready)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._process.told if isinstance(self._process, _ToolsProcess) else []

    @property
    def tasks(self) -> int | None:
        return self._process.told if isinstance(self._process, _TasksetProcess) else None

    @property
    def named(self) -> str:
        return self._process.function

    @property
    def sees_us_at(self) -> str:
        return LOOPBACK

    @contextlib.asynccontextmanager
    async def episode(self, seed: int) -> AsyncIterator[Episode]:
        await self.ready()  # another process, if the machine has ended it meanwhile
        try:
            ours = self._process.begin()
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_LINE)
        except OSError as error:
            raise EpisodeFailedError("crash", f"no process for the episode: {error}") from error
        try:
            writer.write(pickle.dumps((seed,)))
            yield Episode(reader, writer, self._limit, self._output)
        finally:
            writer.transport.abort()

    def close(self) -> None:
        """End the process and all episodes at once."""
        self._process.close(EXIT_SECONDS)


class Episode:
    """One episode, in its own process.

    Attributes:
        seconds: spent in the environment so far.
    """

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float, output: Output
    ) -> None:
        self._reader, self._writer, self._limit, self._output = reader, writer, limit, output
        self._timer: asyncio.Timeout | None = None
        self._turns, self._stopped = 0, 0.0  # turns that the model makes, and since when it makes any
        self.seconds = 0.0

    async def reset(self, row: Mapping[str, Any]) -> Prompt:
        """Return what opens the episode. A server that fails is asked again within the limit: nothing is played yet.

        Raises:
            EpisodeFailedError: the class does not say.
        """
        now = asyncio.get_running_loop().time
        deadline, pause, tries = now() + self._limit, FIRST_PAUSE_SECONDS, 1
        while True:
            try:
                opening: Prompt = (await self._call(RESET, row, deadline - now()))["opening"]
            except EpisodeFailedError as failed:
                if failed.cause != "server":
                    raise
                if now() + pause >= deadline:
                    tried = f" ({tries} times in {self._limit:g} s, the environment's timeoutSeconds)"
                    raise EpisodeFailedError("server", failed.message + tried) from failed
            else:
                return opening
            await asyncio.sleep(pause)
            self.seconds += pause
            pause, tries = min(2 * pause, LONGEST_PAUSE_SECONDS), tries + 1

    async def step(self, text: str) -> Answer:
        """Return what the environment says to a turn of the model. Raises EpisodeFailedError if it does not."""
        return Answer(**await self._call(STEP, text))

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Result:
        """Return what answers the call of a tool. Raises EpisodeFailedError if nothing does."""
        given = name, arguments, self._limit
        return Result(**await self._call(CALL, given, self._limit + _GRACE_SECONDS, name))

    async def play(self, row: Mapping[str, Any], base_url: str, key: str, model: str) -> Answer:
        """Let an agent play the whole episode with the model at this URL; return its reward.

        Raises:
            EpisodeFailedError: it gave none, or did nothing for longer than the limit.
        """
        reply = await self._call(PLAY, (row, base_url, key, model))
        return Answer("", True, reply["reward"], reply["components"])

    @contextlib.contextmanager
    def waits_for_the_model(self) -> Iterator[None]:
        """Stop the clock of an agent while the model makes its turns, and begin a new time limit after that."""
        self._turns += 1
        if self._turns == 1:
            self._stopped = time.perf_counter()
            if self._timer is not None and not self._timer.expired():
                self._timer.reschedule(None)
        try:
            yield
        finally:
            self._turns -= 1
            if not self._turns:
                self.seconds -= time.perf_counter() - self._stopped
                if self._timer is not None and not self._timer.expired():
                    self._timer.reschedule(asyncio.get_running_loop().time() + self._limit)

    async def _call(self, method: str, given: Any, limit: float = 0.0, name: str = "") -> dict[str, Any]:
        name, began = name or method, time.perf_counter()
        self._output.trim()
        try:
            async with asyncio.timeout(limit or self._limit) as self._timer:
                self._writer.write(pickle.dumps((method, given)))
                await self._writer.drain()
                line = await self._reader.readline()
        except TimeoutError as error:
            message = f"{name} took more than {self._limit:g} s, the environment's timeoutSeconds"
            raise EpisodeFailedError("timeout", message) from error
        except (ValueError, OSError) as error:
            raise EpisodeFailedError("crash", f"the process ended in {name}: {error}") from error
        finally:
            self._timer = None
            self.seconds += time.perf_counter() - began
        return _understood(line, name)


def _understood(line: bytes, method: str) -> dict[str, Any]:
    """Return a reply. Raises EpisodeFailedError if it says that the class failed, or nothing."""
    try:
        reply: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise EpisodeFailedError("crash", f"the process ended in {method}") from error
    if "ended" in reply:
        raise EpisodeFailedError("crash", f"the process {reply['ended']} in {method}")
    if "failed" in reply:
        raise EpisodeFailedError(*reply["failed"])
    return reply
