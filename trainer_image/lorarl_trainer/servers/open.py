"""Opens a job's servers for a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.servers.origin import Origin
from lorarl_trainer.servers.pool import Servers

SERVED = "served"
"""The folder of adapter versions in a run's."""


@contextlib.asynccontextmanager
async def open_servers(
    job: LoRARLJob, origin: Origin | None, out_dir: Path, warn: Callable[[str], None]
) -> AsyncIterator[Servers | None]:
    """Yield a job's servers, which forget its adapter when the block ends; None without any.

    Args:
        job: the job.
        origin: who started them; None if the workers' own engines generate.
        out_dir: the run's folder, where adapters go unless the job names another one.
        warn: see `Servers`.
    """
    if origin is None:
        yield None
        return
    named = job.spec.rollout.server_folder
    servers = Servers(job.spec, origin, Path(named, job.name) if named else (out_dir / SERVED).absolute(), warn)
    try:
        yield servers
    finally:
        await servers.close()
