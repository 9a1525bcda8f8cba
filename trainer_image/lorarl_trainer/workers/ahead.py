"""Workers' processes that import the job's libraries ahead: before Ray knows of their machine.

Ray starts one idle process per CPU that a machine offers, which is one per worker, and a worker later takes it. Each
imports the module `preloaded` first. Meanwhile the driver reads its inputs, or waits for other machines.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import API_VERSION, KIND, LoRARLJobSpec
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.timing import Span
from lorarl_trainer.workers.libraries import import_libraries

MANIFEST = "LORARL_PRELOAD"
"""Environment variable: the path of the job's manifest. If it is absent or empty, nothing is imported ahead."""
WITHOUT: Mapping[str, Any] = {"env_vars": {MANIFEST: ""}}
"""Ray's environment for a task that needs no libraries. It must not take a process that a worker waits for."""
_RAY = {
    "RAY_preload_python_modules": "lorarl_trainer.workers.preloaded",
    # By default, Ray ends processes that were idle for a second once the job has reserved their CPUs.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
}
_began: list[float] = []
_imported: list[Span] = []


def imports_ahead() -> bool:
    """Return whether the machines' processes import ahead, as this process's environment says."""
    return bool(os.environ.get(MANIFEST))


@contextmanager
def importing_ahead(spec: LoRARLJobSpec) -> Iterator[None]:
    """Let a Ray that is started within the block, and ends with it, import ahead for a job."""
    written = spec.model_dump(by_alias=True, mode="json", exclude_unset=True)
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "job"}, "spec": written}
    with NamedTemporaryFile("w", encoding="utf-8", suffix=".json") as manifest:
        json.dump(job, manifest)
        manifest.flush()
        ours = {MANIFEST: manifest.name, **_RAY}
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
    _began.append(time.time())
    try:
        spec = load_job(Path(os.environ[MANIFEST])).spec
        os.environ.update(environment(spec, threads_each(spec)))
        _imported.extend(import_libraries(spec))
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()


def began() -> float | None:
    """Return the Unix time at which this process began to import ahead; None if it did not."""
    return _began[0] if _began else None


def imported() -> list[Span]:
    """Return when each part of the libraries was imported ahead; nothing if they were not."""
    return _imported


def environment(spec: LoRARLJobSpec, threads: int) -> dict[str, str]:
    """Return the variables that the process of a worker with so many threads needs before it imports torch."""
    device = get_device(spec.cluster.gpus_per_node)
    # CUDA reads its variables before the plan is made, which may choose the layout.
    return device.environment(threads, tensor_parallel=(spec.trainer.tensor_parallel_size or 1) > 1)


def threads_each(spec: LoRARLJobSpec) -> int:
    """Return how many threads a worker on a machine like this one may use."""
    return max(1, len(os.sched_getaffinity(0)) // spec.workers_per_node)
