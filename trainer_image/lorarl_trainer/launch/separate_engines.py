"""Engines on GPUs that the trainer does not use: servers of vLLM that a run starts, starts again, and ends.

What generates with them is `servers/`, as with servers that somebody else started: each proves every version. One that
is killed is left out there, and takes requests again once it has proven the newest version.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.errors import RolloutServerError
from lorarl_trainer.launch.engine_command import ENGINES, GpuShares, engine_command, engine_environment
from lorarl_trainer.launch.server_process import ServerProcess
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.separate import plan_engine, sequences_at_once
from lorarl_trainer.servers.client import UnreachableError, VllmServer
from lorarl_trainer.servers.hosts import LOOPBACK, port_for_later
from lorarl_trainer.servers.key import ServerKey
from lorarl_trainer.servers.origin import Origin
from lorarl_trainer.storage.downloads import read_model_config

RESTARTS, WINDOW_SECONDS = 5, 3600.0
"""An engine is started again at most so often within this time."""
_ROUND_SECONDS = 0.2
_ANSWER_SECONDS = 30.0


@dataclass(eq=False)
class _Engine:
    """One engine.

    Attributes:
        number: by which people know it, from 0.
        process: None before its start, and once it is given up.
        restarts: when it was started again.
    """

    number: int
    port: int
    gpus: Sequence[str]
    process: ServerProcess | None = None
    restarts: list[float] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def may_restart(self, now: float) -> bool:
        """Whether it has not been started again too often of late."""
        return sum(now - at < WINDOW_SECONDS for at in self.restarts) < RESTARTS


class SeparateEngines:
    """All separate engines of a run."""

    def __init__(
        self, spec: LoRARLJobSpec, gpus: Sequence[Sequence[str]], log_dir: Path, warn: Callable[[str], None]
    ) -> None:
        """Start nothing yet.

        Args:
            spec: the job.
            gpus: those of each engine.
            log_dir: each engine's output goes to a file there.
            warn: takes what the user should know about an engine.
        """
        self._spec, self._log_dir, self._warn = spec, log_dir, warn
        self._key = secrets.token_hex(16)
        self._engines = [_Engine(number, port_for_later(LOOPBACK), own) for number, own in enumerate(gpus)]
        self._watching: asyncio.Task[None] | None = None

    @property
    def origin(self) -> Origin:
        """The engines as servers."""
        return Origin(
            field=ENGINES,
            urls=tuple(engine.url for engine in self._engines),
            key=ServerKey(self._key),
            at_once=sequences_at_once(self._spec),
            if_wrong=f"Remove {ENGINES}, so that engines in the workers generate, and please report this with the "
            "model's config.json",
            if_gone=f"What they print is in {self._log_dir}. Run the same command again: the next start resumes.",
        )

    def start(self, model: Path) -> None:
        """Start all, from the main thread. `model`: the folder of the trainer's base model."""
        self._model, self._cache_gib = model, 0
        self._with_images = "vision_config" in read_model_config(model)
        if not self._spec.on_gpu:
            plan = plan_engine(self._spec, read_model_sizes(model), host_memory())
            assert plan is not None, "the job has separate engines"
            self._cache_gib = -(-plan.execution.engine.kv_cache_bytes // 2**30)
        self._log_dir.mkdir(parents=True, exist_ok=True)
        for engine in self._engines:
            self._start(engine)

    def _start(self, engine: _Engine) -> None:
        """Start one. Each start has its own log: the one before says why it ended."""
        again = f"-restart-{len(engine.restarts)}" if engine.restarts else ""
        engine.process = ServerProcess(
            engine_command(self._spec, self._model, engine.port, with_images=self._with_images),
            self._log_dir / f"engine-{engine.number}{again}.log",
            engine_environment(self._spec, engine.gpus, self._key, self._cache_gib),
        )

    async def ready(self, fail: Callable[[RolloutServerError], None]) -> None:
        """Wait until all answer. From then on, one that ends is started again.

        `fail`: is called when all have ended too often.

        Raises:
            RolloutServerError: one ended before it answered, with what it said.
        """
        key = ServerKey(self._key)
        async with aiohttp.ClientSession(middlewares=(key.attach,)) as session:
            await asyncio.gather(*(self._ready(engine, session) for engine in self._engines))
        self._watching = asyncio.create_task(self._watch(fail))

    async def _ready(self, engine: _Engine, session: aiohttp.ClientSession) -> None:
        client = VllmServer(engine.url, session, _ANSWER_SECONDS)
        while True:
            assert engine.process is not None, "it has been started"
            if why := engine.process.why_ended:
                raise RolloutServerError(f"{ENGINES}: engine {engine.number} {why}")
            with contextlib.suppress(UnreachableError):
                await client.models()
                return
            await asyncio.sleep(_ROUND_SECONDS)

    async def _watch(self, fail: Callable[[RolloutServerError], None]) -> None:
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            for engine in self._engines:
                if engine.process and (why := engine.process.why_ended):
                    self._after_end(engine, why)
            if not any(engine.process for engine in self._engines):
                fail(RolloutServerError(f"{ENGINES}: no engine is left. {self.origin.if_gone}"))
                return

    def _after_end(self, engine: _Engine, why: str) -> None:
        """Start an engine again, unless that was done too often."""
        assert engine.process is not None, "it has ended"
        engine.process.end()  # vLLM's core is a process beside it, which may be left and keeps the GPU
        engine.process, now = None, time.monotonic()
        told = f"{ENGINES}: engine {engine.number} ({engine.url}) {why}"
        if not engine.may_restart(now):
            self._warn(f"{told}. It was started again {RESTARTS} times within an hour, and is given up")
            return
        engine.restarts.append(now)
        try:
            self._start(engine)
        except OSError as error:  # a full disk takes no log
            self._warn(f"{told}. It cannot be started again ({error}), and is given up")
            return
        self._warn(f"{told}. It is started again, for the {_ordinal(len(engine.restarts))} time in this run")

    async def end(self) -> None:
        """End all, and what they have started."""
        if self._watching is not None:
            self._watching.cancel()
        running = [engine.process for engine in self._engines if engine.process]
        for process in running:
            process.ask_to_end()
        for process in running:
            await asyncio.to_thread(process.end)


def _ordinal(number: int) -> str:
    """Return 1st, 2nd, 3rd, 4th ... 11th ... 21st."""
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(last, 'th')}"


@contextlib.asynccontextmanager
async def separate_engines(
    spec: LoRARLJobSpec, shares: GpuShares | None, log_dir: Path, warn: Callable[[str], None]
) -> AsyncIterator[SeparateEngines | None]:
    """Yield a job's separate engines, which end with the block; None without any.

    `shares`: whose GPUs are whose; None for a job without separate engines. See `SeparateEngines` for the others.
    """
    if shares is None:
        yield None
        return
    engines = SeparateEngines(spec, shares.engines, log_dir, warn)
    try:
        yield engines
    finally:
        await engines.end()
