"""Opens a job's servers for a run."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.servers.pool import Servers

SERVED = "served"
"""The folder of adapter versions in a run's."""


@contextlib.asynccontextmanager
async def open_servers(job: LoRARLJob, out_dir: Path, warn: Callable[[str], None]) -> AsyncIterator[Servers | None]:
    """Yield a job's servers, which forget its adapter when the block ends; None without any.

    `out_dir`: the run's folder, where adapters go unless the job names another one. `warn`: see `Servers`.

    Raises:
        InputError: the Secret with their key lacks it.
    """
    if not job.spec.servers:
        yield None
        return
    named = job.spec.rollout.server_folder
    servers = Servers(job.spec, Path(named, job.name) if named else (out_dir / SERVED).absolute(), warn)
    try:
        yield servers
    finally:
        await servers.close()
