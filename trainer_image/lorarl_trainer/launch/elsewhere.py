"""What generates for a run outside its workers: engines on other GPUs or in other pods, or servers that are named."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_trainer.devices.nvidia_smi import visible_gpus
from lorarl_trainer.launch.engine_command import GpuShares, share_gpus
from lorarl_trainer.launch.preparation import Prepared
from lorarl_trainer.launch.room import LOGS
from lorarl_trainer.launch.separate_engines import SeparateEngines
from lorarl_trainer.servers.open import open_servers
from lorarl_trainer.servers.origin import of_manifest
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.timing import StartClock


@dataclass(frozen=True)
class Elsewhere:
    """What generates outside the workers. Nothing of it is there if their own engines do.

    Attributes:
        servers: what gives requests to whichever has room.
        engines: the processes of these servers, where the run starts them.
        shares: which GPUs are the workers', and which the engines'.
    """

    servers: Servers | None = None
    engines: SeparateEngines | None = None
    shares: GpuShares | None = None

    async def start(self, checks: Awaitable[Prepared], ray: Callable[[], Awaitable[object]]) -> None:
        """Start engines, if there are any, as soon as they can be.

        `checks` bring the base model to this machine. Engines in pods fetch it themselves, and wait for `ray`.
        """
        if self.engines is None:
            return
        if self.engines.in_pods:
            await ray()
            self.engines.start(None)
        else:
            self.engines.start((await checks).base)

    @contextlib.asynccontextmanager
    async def ending(self) -> AsyncIterator[None]:
        """End the engines when the block ends, before Ray does."""
        try:
            yield
        finally:
            if self.engines is not None:
                await self.engines.end()

    async def ready(self, fingerprint: str, clock: StartClock) -> None:
        """Wait until engines answer, if there are any. `fingerprint`: of the workers' base model.

        Raises:
            LorarlError: one ends before, or none gets a place; see `SeparateEngines.ready`.
        """
        if self.engines is not None and self.servers is not None:
            with clock.part("separate engines"):
                await self.engines.ready(self.servers.fail, fingerprint)


def in_words(spec: LoRARLJobSpec) -> str:
    """Return what processes a run starts."""
    engines = f", and {spec.separate_engines.count} separate engine(s)" if spec.separate_engines else ""
    return f"{spec.world_size} worker(s){engines}"


def gpus_in_words(spec: LoRARLJobSpec, name: str) -> str:
    """Return what GPUs a run uses, given the name of one; nothing on a CPU."""
    if not name:
        return ""
    return f"{spec.world_size} x {name}" + (f", and {spec.engine_gpus} for engines" if spec.engine_gpus else "")


@contextlib.asynccontextmanager
async def open_elsewhere(
    job: LoRARLJob, out_dir: Path, warn: Callable[[str], None], *, in_pods: bool
) -> AsyncIterator[Elsewhere]:
    """Yield what generates outside a job's workers. Servers forget its adapter when the block ends.

    Args:
        job: the job.
        out_dir: the run's folder.
        warn: takes what the user should know of a server or an engine.
        in_pods: whether engines have own pods.

    Raises:
        InputError: the machine has too few GPUs, or the Secret of the servers' key lacks it.
    """
    spec, engines, shares = job.spec, None, None
    if spec.separate_engines and in_pods:
        engines = SeparateEngines.of_pods(spec, warn)
    elif spec.separate_engines:
        shares = share_gpus(spec, visible_gpus())
        engines = SeparateEngines.here(spec, shares.engines, out_dir / LOGS, warn)
    named = of_manifest(spec) if spec.servers else None
    async with open_servers(job, engines.origin if engines else named, out_dir, warn) as servers:
        yield Elsewhere(servers, engines, shares)
