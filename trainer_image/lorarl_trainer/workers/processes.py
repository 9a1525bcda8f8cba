"""The processes of a job's workers, as Ray actors in one placement group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.workers import ahead
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from lorarl_trainer.workers.engines import BESIDE
from lorarl_trainer.workers.failures import driver_log
from lorarl_trainer.workers.nodes import Nodes
from lorarl_trainer.workers.worker import Rank, Worker


@dataclass(frozen=True)
class Processes:
    """The processes of a job's workers.

    Attributes:
        actors: those of Ray, in the order of the ranks, or what passes calls on to them.
        nodes: where they are.
        logs: each one's own file; None where Ray brings the output to the driver.
        end: ends them at once and gives their devices back.
    """

    actors: Sequence[Any]
    nodes: Nodes
    logs: Sequence[Path | None]
    end: Callable[[], None]


def start_processes(spec: LoRARLJobSpec, log_dir: Path | None, devices: Any) -> Processes:
    """Start a worker's process on each device. Ray must be initialised.

    Args:
        spec: the job.
        log_dir: each worker's output goes to a file there; None leaves it to Ray, as in a pod.
        devices: the places of the workers.
    """
    import ray

    size, nodes = spec.world_size, Nodes(devices)
    # A second thread in each worker that generates. Without one, Ray runs all methods in the main thread.
    groups = {"concurrency_groups": {BESIDE: 1}} if spec.generates else {}
    logs = [log_dir / f"worker-{rank}.log" if log_dir else None for rank in range(size)]
    address, port = nodes.rendezvous() if size > 1 else (None, None)
    actors: list[Any] = []
    for rank, (local_rank, bundle) in enumerate(each for node in nodes.bundles for each in enumerate(node)):
        kind = Worker if rank else CheckpointingWorker
        actor = ray.remote(num_cpus=1, **groups)(kind).options(**placed(spec, nodes, bundle))
        place = Rank(rank, size, local_rank, address, port)
        actors.append(actor.remote(spec, place, logs[rank], driver_log(spec)))
        actors[-1].preload.remote()  # runs while the caller prepares what `start` needs

    def end() -> None:
        for actor in actors:
            ray.kill(actor)
        nodes.release()

    return Processes(actors, nodes, logs, end)


def placed(spec: LoRARLJobSpec, nodes: Nodes, bundle: int) -> dict[str, Any]:
    """Return the options of a worker's actor in a bundle of the placement group."""
    # A process that imports ahead has the variables already. Ray gives it to workers that ask for no others.
    environment = {} if ahead.imports_ahead() else {"runtime_env": {"env_vars": ahead.environment(spec)}}
    return {"num_gpus": 1 if spec.on_gpu else 0, "scheduling_strategy": nodes.at(bundle), **environment}
