"""Ray and the workers of a run: the cluster that RAY_ADDRESS names, or our own Ray, which ends with us."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError, LorarlError, NodeLostError, WorkerError, in_one_line
from lorarl_trainer.launch.engine_command import GpuShares
from lorarl_trainer.launch.places import require_places
from lorarl_trainer.launch.ray_groups import Guard, start_apart
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.timing import StartClock
from lorarl_trainer.workers.ahead import importing_ahead
from lorarl_trainer.workers.elastic import reserve_some
from lorarl_trainer.workers.group import WorkerGroup
from lorarl_trainer.workers.nodes import lost_machines
from lorarl_trainer.workers.processes import start_processes

_OBJECT_STORE_BYTES = 256 << 20
_POLL_SECONDS = 0.2
_START_ATTEMPTS = 3
"""A busy machine may need longer than Ray's limit of 30 s."""


class RayCluster:
    """Starts Ray and the workers in the background. They import their engines while the caller reads its inputs."""

    def __init__(
        self,
        spec: LoRARLJobSpec,
        log_dir: Path | None,
        clock: StartClock,
        servers: Servers | None = None,
        shares: GpuShares | None = None,
        wait_seconds: float = 0.0,
    ) -> None:
        """Nothing starts before `async with`.

        `servers`: see `WorkerGroup`. `shares`: whose GPUs are whose, where some are not the workers'. `wait_seconds`:
        see `reserve_some`.
        """
        self._shares, self._wait_seconds = shares, wait_seconds
        self._spec, self._log_dir, self._clock, self._servers = spec, log_dir, clock, servers
        self._abandoned = threading.Event()
        self._guard: Guard | None = None
        self._ahead = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        with self._clock.part("import of Ray"):
            import ray  # noqa: F401  # before the thread: two threads that import at once slow each other down

        self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        return self

    async def workers(self) -> WorkerGroup:
        """Return the workers once their processes exist.

        Raises:
            InputError: the job asks for more GPUs than this machine has.
            WorkerError: Ray does not start.
        """
        workers = await asyncio.shield(self._starting)
        assert workers is not None, "only called within the block"
        self._group = workers
        return workers

    async def replace_workers(self, clock: StartClock, *, lost: bool) -> WorkerGroup:
        """End the workers' processes, also on machines that are left; start new ones when their devices are there.

        Nothing is kept of the old ones: a process whose peer is gone may hang in a collective operation, and the new
        machine's process needs as long to start as theirs.

        `lost`: whether a machine is lost, or is about to be. Then as many as before are enough. Otherwise there are
        more of them: those that are there are taken at once, since the others may not come for hours.

        Raises:
            NodeLostError: another machine was lost meanwhile.
        """
        self._clock = clock
        self._group.kill()
        start = (self._start_again, self._group.machines) if lost else (self._new_group, 0.0)
        self._starting = asyncio.create_task(asyncio.to_thread(*start))
        return await self.workers()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers and Ray. Wait for a start that is under way, and start nothing more."""
        self._abandoned.set()
        with contextlib.suppress(LorarlError):  # `workers` has raised it, or another error came first
            if (workers := await self._starting) is not None:
                workers.kill()
        await asyncio.to_thread(stop_ray)
        if self._guard is not None:
            self._guard.dismiss()
        self._ahead.close()

    def _start(self) -> WorkerGroup | None:
        with self._clock.part("Ray"):
            self._guard = start_ray(self._spec, self._ahead, self._shares)
        return None if self._abandoned.is_set() else self._new_group(self._wait_seconds)

    def _start_again(self, machines: frozenset[str]) -> WorkerGroup | None:
        """Wait until Ray knows which machine is lost: one that is about to be removed still offers its devices."""
        with self._clock.part("loss of the machine"):
            while not machines & lost_machines():
                if self._abandoned.wait(_POLL_SECONDS):
                    return None
        return self._new_group(self._wait_seconds, enough=len(machines))

    def _new_group(self, wait_seconds: float, enough: int | None = None) -> WorkerGroup | None:
        """Start workers on the machines that `reserve_some` finds."""
        import ray

        with self._clock.part("devices"):
            found = reserve_some(self._spec, wait_seconds, self._abandoned, enough)
            if found is None:
                return None
            spec, devices = found
            try:
                return WorkerGroup(spec, start_processes(spec, self._log_dir, devices), self._servers)
            except (ray.exceptions.RayError, NodeLostError) as error:
                ray.util.remove_placement_group(devices)
                raise NodeLostError("a machine was lost while the workers' processes started") from error


def start_ray(spec: LoRARLJobSpec, ahead: contextlib.ExitStack, shares: GpuShares | None = None) -> Guard | None:
    """Connect to Ray; return the guard of our own Ray, whose processes import ahead until `ahead` is closed.

    With `shares`, it sees the trainer's GPUs alone, and so do the workers.

    Raises:
        InputError: the job asks for more GPUs than this machine has, or a folder that Ray writes to cannot be written.
        WorkerError: Ray does not start.
    """
    # A worker without a GPU keeps the environment that it is given.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # No usage reports leave the machine.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=True)
        return None
    # Ray warns about a thread that cannot handle SIGTERM (we do that) and about its own defaults, which no user can
    # fix.
    logging.getLogger("ray").setLevel(logging.ERROR)
    require_places()
    start_apart()
    ahead.enter_context(importing_ahead(spec))
    if shares is not None and shares.trainer:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(shares.trainer)
    for attempt in range(1, _START_ATTEMPTS + 1):
        try:
            ray.init(
                address="local",
                # One per worker. For each, Ray starts a process that imports ahead.
                num_cpus=spec.world_size,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECT_STORE_BYTES,
                configure_logging=False,
            )
            break
        except Exception as error:  # Ray raises every type
            ray.shutdown()
            if not _is_late(error) or attempt == _START_ATTEMPTS:
                raise _not_started(error) from error
    # Ray prints to standard output that a worker died. WorkerGroup reports that with the end of the worker's log.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus < spec.cluster.gpus_per_node:
        hint = (
            "Use --set spec.cluster.gpusPerNode=0 for a CPU job."
            if gpus == 0
            else f"Use --set spec.cluster.gpusPerNode={gpus}."
        )
        raise InputError(
            "spec.cluster.gpusPerNode",
            str(spec.cluster.gpus_per_node),
            f"at most {gpus}, the number of GPUs in this machine",
            hint,
        )
    return Guard()


def _is_late(error: Exception) -> bool:
    """Return whether Ray's processes were not up within 30 s, for which it raises a plain Exception."""
    return type(error) is Exception or isinstance(error, TimeoutError)


def _not_started(error: Exception) -> WorkerError:
    hint = "Run the same command again when the machine is less busy." if _is_late(error) else "Remove its cause."
    logs = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp") / "ray/session_latest/logs"
    what = f"Ray could not be started on this machine ({in_one_line(error)})"
    return WorkerError(f"{what}. {hint} Ray's logs are in {logs}.")


def stop_ray() -> None:
    """End our Ray processes, or the connection to a cluster's Ray."""
    import ray

    ray.shutdown()
