"""Workers' processes that import the job's libraries ahead: before Ray knows of their machine.

Ray starts one idle process per CPU that a machine offers, which is one per worker, and a worker later takes it. Each
imports the module `preloaded` first. Meanwhile the driver reads its inputs, or waits for other machines.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lorarl_api.ahead import PRELOAD, RAY_SETTINGS
from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import API_VERSION, KIND, LoRARLJobSpec
from lorarl_trainer.devices.host_cpus import host_cpus
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.planning.separate import processes_on_host
from lorarl_trainer.timing import Span, StartClock
from lorarl_trainer.workers.libraries import import_libraries

WORKER_PROCESS = "worker process"
"""The first part of a worker's start."""
WITHOUT: Mapping[str, Any] = {"env_vars": {PRELOAD: ""}}
"""Ray's environment for a task that needs no libraries. It must not take a process that a worker waits for."""
_clocks: list[StartClock] = []  # one, if this process imports ahead


def imports_ahead() -> bool:
    """Return whether the machines' processes import ahead, as this process's environment says."""
    return bool(os.environ.get(PRELOAD))


@contextmanager
def importing_ahead(spec: LoRARLJobSpec) -> Iterator[None]:
    """Let a Ray that is started within the block, and ends with it, import ahead for a job."""
    written = spec.model_dump(by_alias=True, mode="json", exclude_unset=True)
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "job"}, "spec": written}
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as manifest:
        json.dump(job, manifest)
        manifest.flush()
        ours = {PRELOAD: manifest.name, **RAY_SETTINGS}
        before = {name: os.environ[name] for name in ours if name in os.environ}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name in ours:
                del os.environ[name]
            os.environ.update(before)


def import_ahead() -> None:
    """Import what the workers of this process's job need; do nothing if it is to import nothing.

    An error is only shown here. The worker imports again, and its error reaches the user.
    """
    if not imports_ahead():
        return
    clock = StartClock("worker", WORKER_PROCESS)
    _clocks.append(clock)
    try:
        spec = load_job(Path(os.environ[PRELOAD])).spec
        os.environ.update(environment(spec))
        import_libraries(spec, clock)
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()


def parts() -> list[Span]:
    """Return the parts of this process's start, if it imports ahead: itself, and what was imported."""
    return [part for clock in _clocks for part in clock.parts]


def environment(spec: LoRARLJobSpec) -> dict[str, str]:
    """Return the variables that the process of a worker on this machine needs before it imports torch."""
    device = get_device(spec.cluster.gpus_per_node)
    threads = max(1, host_cpus() // processes_on_host(spec))
    # CUDA reads its variables before the plan is made, which may choose the layout.
    return device.environment(threads, tensor_parallel=(spec.trainer.tensor_parallel_size or 1) > 1)
