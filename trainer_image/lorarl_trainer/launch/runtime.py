"""Where a run takes place: on one machine, or in the pods of a cluster. The loop is the same."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.launch.local import ignored_by_a_single_machine, refuse_what_needs_a_cluster
from lorarl_trainer.pods.drain import DRIVER, register
from lorarl_trainer.pods.status_sink import StatusSink
from lorarl_trainer.pods.steering import Steering
from lorarl_trainer.progress import Sink
from lorarl_trainer.session import Session

ATTEMPT = "LORARL_ATTEMPT"
"""Environment variable: the number that the operator gave this start of the job."""


@dataclass(frozen=True)
class Surroundings:
    """What differs from place to place.

    Attributes:
        log_dir: folder for the workers' output; None leaves it to Ray, which brings it to the driver's.
        sinks: where progress goes besides the usual places.
        steer: see `Session`.
        ignored: what the manifest asks for and cannot be honoured here.
    """

    log_dir: Path | None
    sinks: tuple[Sink, ...] = ()
    steer: Callable[[Session], Awaitable[None]] | None = None
    ignored: tuple[str, ...] = ()


def one_machine(job: LoRARLJob, out_dir: Path) -> Surroundings:
    """This machine alone.

    Raises:
        InputError: the manifest asks for what one machine cannot honour, naming the field.
    """
    refuse_what_needs_a_cluster(job)
    return Surroundings(out_dir / "logs", ignored=tuple(ignored_by_a_single_machine(job)))


def in_pods(job: LoRARLJob, manifest: Path) -> Surroundings:
    """The pods of a cluster, in which this process is the driver of a Ray job and known as such to its pod's preStop hook."""
    register(DRIVER)
    return Surroundings(
        log_dir=None, sinks=(StatusSink(job, int(os.environ.get(ATTEMPT, "1"))),), steer=Steering(manifest)
    )
