"""The process that keeps the workers which trials of a sweep share: run as a program by `lorarl sweep --share`.

It ends with an exit code of 0 when it is asked to, and otherwise when the workers are of no use any more.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from lorarl_api.load import load_job
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.launch.ray_cluster import start_ray, stop_ray
from lorarl_trainer.launch.shared_cluster import ACTOR, NAMESPACE, Address
from lorarl_trainer.workers.engines import BESIDE
from lorarl_trainer.workers.nodes import Nodes, reserve
from lorarl_trainer.workers.processes import placed
from lorarl_trainer.workers.seats import ASIDE
from lorarl_trainer.workers.shared import SharedWorker

ADDRESS, CULPRIT, LOG = "address.json", "culprit.txt", "worker-0.log"
"""Files in the keeper's folder: where the workers are, once they are there; which trial's turn ended them; output."""
WATCH = "watch"
"""The shared worker's thread that waits for the worker's failure."""
EXIT_LOST = 3
_ASIDE_THREADS = 4
_LOOK_SECONDS = 0.2
_LEAVING_SECONDS = 600.0
"""How long trials may take to publish and end, when the sweep has ended before them."""


def main(manifest: Path, folder: Path, seats: int, overrides: list[str]) -> int:
    """Keep the workers for the job of a manifest and others like it; return the exit code."""
    asked = threading.Event()
    with contextlib.ExitStack() as ahead:
        spec = load_job(manifest, overrides).spec
        _heed(asked)
        guard = start_ray(spec, ahead)
        try:
            import ray

            _heed(asked)  # Ray has installed a handler that would abort the process
            devices = reserve(spec, asked)
            if devices is None:
                return 0
            nodes, log = Nodes(devices), (folder / LOG).resolve()
            threads = {BESIDE: 1, ASIDE: _ASIDE_THREADS, WATCH: 1}
            kind = ray.remote(num_cpus=1, concurrency_groups=threads)(SharedWorker)
            actor = kind.options(name=ACTOR, namespace=NAMESPACE, **placed(spec, nodes, 0)).remote(spec, log, seats)
            actor.preload.remote()
            address = ray.get_runtime_context().gcs_address
            Address(address, devices.id.hex(), str(log)).write(folder / ADDRESS)
            return _watch(actor, asked, folder / CULPRIT)
        finally:
            stop_ray()
            if guard is not None:
                guard.dismiss()


def _heed(asked: threading.Event) -> None:
    """Let Ctrl-C and SIGTERM ask for the end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    signal.alarm(0)  # Ray's, if a signal came before


def _watch(actor: Any, asked: threading.Event, culprit: Path) -> int:
    """Wait for the worker's failure, or until asked to end and no trial is left."""
    import ray

    failed, until = actor.failed.options(concurrency_group=WATCH).remote(), float("inf")
    while not ray.wait([failed], timeout=_LOOK_SECONDS)[0]:
        if asked.is_set():
            until = min(until, time.monotonic() + _LEAVING_SECONDS)
            present = actor.present.options(concurrency_group=ASIDE).remote()
            with contextlib.suppress(ray.exceptions.RayError):
                if time.monotonic() > until or not ray.get(present):
                    return 0
    with contextlib.suppress(ray.exceptions.RayError):
        culprit.write_text(ray.get(failed), encoding="utf-8")
    return 0 if asked.is_set() else EXIT_LOST


if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
    except LorarlError as error:
        print(f"lorarl: {error}", file=sys.stderr)
        sys.exit(1)
