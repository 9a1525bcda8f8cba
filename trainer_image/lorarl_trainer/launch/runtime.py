"""Where a run takes place: on one machine, or in the pods of a cluster. The loop is the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.local import (
    ignored_fields,
    refuse_cluster_jobs,
    require_gpu_packages,
    require_large_files,
    require_own_folder,
    require_places_of_engines,
)
from lorarl_trainer.launch.room import LOGS, require_run_folder
from lorarl_trainer.pods.drain import DRIVER, register
from lorarl_trainer.pods.status_sink import StatusSink, report_failure
from lorarl_trainer.pods.steering import PodSteering
from lorarl_trainer.pods.train_job import TrainJobSink
from lorarl_trainer.progress import Sink
from lorarl_trainer.protocols.steering import Steer
from lorarl_trainer.workers.elastic import Room, is_elastic
from lorarl_trainer.workers.group import WorkerGroup

ATTEMPT = "LORARL_ATTEMPT"
"""Environment variable: the number that the operator gave this start of the job."""
NODES = "LORARL_NODES"
"""Environment variable of an elastic job: for how many nodes this attempt asked, if not for all."""
WAIT, GROW = "LORARL_ELASTIC_WAIT_SECONDS", "LORARL_ELASTIC_GROW_SECONDS"
"""Environment variables of an elastic job, which the operator sets: how long to wait for missing machines, and to train
before there may be more of them."""


@dataclass(frozen=True)
class Runtime:
    """What differs between one machine and a cluster.

    Attributes:
        log_dir: folder for the workers' output; None leaves it to Ray, which adds it to the driver's.
        sinks: where progress goes in addition to the usual sinks.
        steering: makes what asks for changes to the job while it trains; None if there can be none.
        ignored: fields of the manifest that have no effect here.
        in_pods: the run is in a cluster's pods, where the operator decides what happens next.
        attempt: the number that the operator gave this start of the job; None outside a cluster.
        manifest: the mounted manifest, which may change while the job runs; None outside a cluster.
        wait_seconds: how long an elastic job waits for missing machines before it trains on those that there are.
    """

    log_dir: Path | None
    sinks: tuple[Sink, ...] = ()
    steering: Callable[[WorkerGroup], Steer] | None = None
    ignored: tuple[str, ...] = ()
    in_pods: bool = False
    attempt: int | None = None
    manifest: Path | None = None
    wait_seconds: float = 0.0

    @property
    def warnings(self) -> list[str]:
        """What a user should know before the run begins."""
        named = ", ".join(self.ignored)
        return [f"`lorarl run` ignores fields that need a cluster: {named}"] if named else []


def local_runtime(job: LoRARLJob, out_dir: Path) -> Runtime:
    """Describe this machine alone.

    Raises:
        LorarlError: the manifest asks for what one machine cannot do, or the folder takes no files.
    """
    refuse_cluster_jobs(job)
    require_gpu_packages(job)
    require_places_of_engines(job)
    require_own_folder(job, out_dir)
    require_large_files()
    require_run_folder(out_dir)
    return Runtime(out_dir / LOGS, TrainJobSink.of_environment(job), ignored=tuple(ignored_fields(job)))


def cluster_runtime(job: LoRARLJob, manifest: Path) -> Runtime:
    """Describe a cluster's pods.

    This process drives a Ray job, and registers as the driver with its pod's preStop hook.
    """
    register(DRIVER)
    status = StatusSink(job, _attempt())
    waits = job.spec.cluster.disruption == "AfterCheckpoint"
    drain = status.waiting_drain if waits else None

    elastic = is_elastic(job.spec)

    def steering(workers: WorkerGroup) -> Steer:
        room = Room(job.spec, workers.spec, float(os.environ[GROW])).is_more if elastic else None
        return PodSteering(manifest, workers, drain, room)

    return Runtime(
        log_dir=None,
        sinks=(status,),
        steering=steering,
        in_pods=True,
        attempt=_attempt(),
        manifest=manifest,
        wait_seconds=float(os.environ[WAIT]) if elastic else 0.0,
    )


def of_attempt(job: LoRARLJob) -> LoRARLJob:
    """Return the job as this attempt asked for it: a queue may have had no room for all of its nodes."""
    asked = os.environ.get(NODES)
    return job.model_copy(update={"spec": job.spec.on_nodes(int(asked))}) if asked else job


def report_invalid_input(manifest: Path, message: str) -> None:
    """Report in the job's status that a pod cannot use its manifest. Every other attempt would end so too."""
    try:
        report_failure(manifest, _attempt(), InputError.reason, message)
    except Exception as error:  # noqa: BLE001 - the manifest's own fault matters more
        print(f"warning: the job's status was not written: {type(error).__name__}: {error}", file=sys.stderr)


def _attempt() -> int:
    return int(os.environ.get(ATTEMPT, "1"))
