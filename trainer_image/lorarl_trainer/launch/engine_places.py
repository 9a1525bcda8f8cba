"""Where an engine runs: as a child process on this machine, or in a pod of the job. A run uses both in the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.launch.engine_command import start_engine
from lorarl_trainer.launch.server_process import ServerProcess
from lorarl_trainer.servers.hosts import LOOPBACK, port_for_later
from lorarl_trainer.servers.reach import OverHttp, Reach

ROUND_SECONDS = 0.2
"""Between two looks at a process."""


class PlaceLostError(Exception):
    """An engine has lost its machine or pod, which is no fault of the engine's."""


class EnginePlace(Protocol):
    """The place of one engine."""

    @property
    def url(self) -> str:
        """By which the engine is known as a server."""
        ...

    @property
    def where(self) -> str:
        """Where it runs, for people."""
        ...

    @property
    def is_found(self) -> bool:
        """Whether there is a machine for it: it does not wait for one, nor has lost it."""
        ...

    def reach(self, session: aiohttp.ClientSession) -> Reach:
        """Return the way to the engine. The session attaches its key."""
        ...

    async def start(self, model: Path | None, log: str) -> str | None:
        """Start the engine, also again after `end`.

        Args:
            model: the base model's folder; None where it is fetched to the engine's own machine.
            log: the name of the file that it prints into.

        Returns:
            The fingerprint of the base model that was fetched there; None if that is `model`.

        Raises:
            PlaceLostError: its machine was lost meanwhile.
            LorarlError, OSError: it cannot be started.
        """
        ...

    async def ended(self) -> str:
        """Wait until the engine has ended by itself, and return why.

        Raises:
            PlaceLostError: its machine was lost.
        """
        ...

    async def end(self) -> None:
        """End the engine and all that it has started, if it runs."""
        ...


class Here:
    """On this machine: a child process that listens on the loopback interface."""

    def __init__(self, spec: LoRARLJobSpec, gpus: Sequence[str], key: str, log_dir: Path) -> None:
        """Start nothing yet. `gpus`: its own, by name. `key`: what its clients have to send."""
        self._spec, self._gpus, self._key, self._log_dir = spec, gpus, key, log_dir
        self._port = port_for_later(LOOPBACK)
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def where(self) -> str:
        return self.url

    @property
    def is_found(self) -> bool:
        return True

    def reach(self, session: aiohttp.ClientSession) -> Reach:
        return OverHttp(self.url, session)

    async def start(self, model: Path | None, log: str) -> None:
        assert model is not None, "it is fetched to this machine, on which the engines are"
        self._process = start_engine(self._spec, model, self._port, self._key, self._log_dir / log, self._gpus)

    async def ended(self) -> str:
        assert self._process is not None, "it has been started"
        while not (why := self._process.why_ended):
            await asyncio.sleep(ROUND_SECONDS)
        return why

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await asyncio.to_thread(process.end)
