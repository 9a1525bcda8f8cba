"""One worker: a process with one device, a trainer backend and, for reinforcement learning, an engine.

A plain class, so that tests can use it without Ray; `workers.group` makes Ray actors of it. Nothing heavy is imported
before `preload`: the device sets the process's environment first.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.devices.imports import lasting_objects
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.lora.files import INIT_FROM, TEACHER
from lorarl_trainer.masked import mask_output
from lorarl_trainer.pods.drain import drain_asked, in_a_pod, register
from lorarl_trainer.pods.output import show_in_pod_log
from lorarl_trainer.pods.owner import pod_name
from lorarl_trainer.protocols.workers import Built, CardResults, DriverState
from lorarl_trainer.servers.adapter_files import AdapterFiles
from lorarl_trainer.timing import Span, StartClock
from lorarl_trainer.workers import ahead
from lorarl_trainer.workers.gpu_memory import MemoryWatch, gpu_memory_explained
from lorarl_trainer.workers.libraries import import_libraries
from lorarl_trainer.workers.locked_memory import allow_locking
from lorarl_trainer.workers.stacks import write_at_signal

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.engine.colocated import ColocatedEngine
    from lorarl_trainer.lora.config import Probe
    from lorarl_trainer.lora.initial import InitialAdapter
    from lorarl_trainer.planning.execution import ExecutionPlan
    from lorarl_trainer.samples.requests import Accumulated, GenerationRequest, Policy, UpdateRequest, UpdateResult
    from lorarl_trainer.samples.wire import CompletionChunk, Samples
    from lorarl_trainer.workers.state import State


SHARED_WORKER = "shared worker"
"""The first part of the start of a job whose worker is there already."""


@dataclass(frozen=True)
class Rank:
    """Where a worker stands among the others.

    Attributes:
        local_rank: its number on its machine: which GPU it has.
        master_address, master_port: where the workers meet; None for a single worker.
    """

    rank: int
    world_size: int
    local_rank: int
    master_address: str | None
    master_port: int | None


class Worker:
    """One device's share of the job."""

    def __init__(self, spec: LoRARLJobSpec, rank: Rank, log: Path | None = None, driver_log: str = "") -> None:
        """Set up the process.

        `log`: everything that libraries print goes there. Without it, Ray brings the output to the driver, and in a pod
        it is in the pod's log, too. `driver_log`: where the driver's output is, as the pod's log names it.
        """
        mask_output()
        if log is not None:
            _redirect_output(log)
        elif in_a_pod():
            show_in_pod_log(f"worker {rank.rank}", f"The steps of the training are in {driver_log}.")
        self._clock = StartClock(f"worker {rank.rank}", ahead.WORKER_PROCESS, earlier=ahead.parts())
        self._spec, self._rank = spec, rank
        self._device = get_device(spec.cluster.gpus_per_node)
        os.environ.update(ahead.environment(spec))
        os.environ.update(RANK=str(rank.rank), WORLD_SIZE=str(rank.world_size), LOCAL_RANK=str(rank.local_rank))
        register(f"worker-{rank.rank}")
        write_at_signal()
        if spec.cluster.rdma:
            print(allow_locking(), flush=True)
        self._imported = False
        self.engine: ColocatedEngine | None = None
        self._plan: ExecutionPlan | None = None

    def preload(self) -> None:
        """Import torch, the backend and vLLM. This is most of a start's time, and it needs nothing of the job."""
        if self._imported:
            return
        import_libraries(self._spec, self._clock)  # in no time, if the process has done so ahead
        self._imported = True

    def memory(self) -> Gpu | Host:
        """Return the memory that is there before the job begins: the GPU's, or on CPU that of the machine."""
        self.preload()
        self._device.select(self._rank.local_rank)
        return self._device.memory()

    def start(
        self,
        model_path: Path,
        stop_token_ids: tuple[int, ...],
        initial_adapter: InitialAdapter | None,
        there: Gpu | Host | None = None,
        teacher: InitialAdapter | None = None,
        adapters: int = 1,
    ) -> Built:
        """Load the base model, start the engine, and make the adapter.

        Args:
            model_path: the base model's folder.
            stop_token_ids: a completion ends with any of them.
            initial_adapter: the adapter to start from; None for a new adapter.
            there: the least `memory` of all workers, so that all of them choose alike; None for a single worker.
            teacher: the adapter that teaches; None if none does.
            adapters: most adapters that the engine is to generate with at a time; the plan may have fewer.

        Raises:
            InputError: the job cannot run as the manifest says.
            OutOfMemoryError: the GPU's memory is used up. That holds for all methods that use it.
        """
        self.load(model_path, stop_token_ids, there, adapters)
        return self.begin(initial_adapter, teacher)

    def load(
        self, model_path: Path, stop_token_ids: tuple[int, ...], there: Gpu | Host | None = None, adapters: int = 1
    ) -> None:
        """Load the base model and start the engine: what jobs of the same execution plan can share. See `start`."""
        self.preload()
        from lorarl_trainer.backends.registry import get_backend
        from lorarl_trainer.planning.plan import plan_job

        spec, self._model_path = self._spec, model_path
        with self._clock.part("device"):
            self._there = there = there or self.memory()
            self._init_process_group()
            self._plan = plan = plan_job(spec, model_path, there, adapters)
            self._watch = MemoryWatch(plan, self._device)
        with self._clock.part("trainer"), self._memory_explained("the base model was loaded"), lasting_objects():
            kind = get_backend(plan.backend)
            kind.import_libraries(self._device)
            self.backend = kind(self._device, spec, model_path, plan, self._clock)
        if plan.rollouts:
            with self._clock.part("engine"), self._memory_explained("vLLM was started"):
                self.engine = self._start_engine(model_path, stop_token_ids, plan)

    def beside(self, spec: LoRARLJobSpec) -> Self:
        """Return a worker of another job with this one's model and engine. Call `begin` next. They take turns."""
        other = copy(self)
        other._spec = spec
        other._clock = StartClock(f"worker {self._rank.rank}", SHARED_WORKER, began=time.time())
        return other

    def begin(self, initial_adapter: InitialAdapter | None, teacher: InitialAdapter | None) -> Built:
        """Make the job's adapter, which takes the place of another one. See `start`.

        Raises:
            InputError: the adapters cannot be used with the job.
        """
        from lorarl_trainer.lora.experts import expert_layers

        spec, plan, there = self._spec, self.plan, self._there
        with self._clock.part("adapter"), self._memory_explained("the adapter was made"):
            if initial_adapter is None:
                self.backend.create_adapter(spec.trainer.seed)
            else:
                self.backend.load_adapter(self._of_the_jobs_rank(initial_adapter, INIT_FROM), INIT_FROM)
            if teacher is not None:
                self.backend.keep_teacher(self._of_the_jobs_rank(teacher, TEACHER))
            counts = self.backend.counts()
        return Built(
            modules=self.backend.modules,
            expert_rank=plan.expert_rank if expert_layers(self.backend.modules) else None,
            trainable_parameters=counts.trainable,
            total_parameters=counts.total,
            ranks=(plan.layout.trainer_workers, plan.layout.engine_ranks),
            memory=plan.table,
            warnings=self._warnings(plan),
            micro_batch_tokens=plan.trainer.micro_batch_tokens,
            gpu=there.name if isinstance(there, Gpu) else "",
        )

    def sync(self, version: int, verify: bool = False, slot: int = 0) -> float:
        """Bring the trainer's adapter to the engine's slot as this version; return the seconds it took."""
        with self._clock.part("first sync"), self._memory_explained("the adapter was brought to vLLM"):
            return self.engine.sync(version, verify, slot) if self.engine else 0.0

    def write_adapter(self, folder: Path, kept: Collection[Path]) -> None:
        """Write the adapter for servers, in PEFT's format, in place of the versions beside it (collective).

        `kept`: folders of earlier versions that stay.

        Raises:
            InputError: the folder cannot be written.
        """
        from lorarl_trainer.lora.served_files import replace_version

        weights = self.backend.adapter.export()
        if self._rank.rank == 0:
            replace_version(folder, weights, self.backend.adapter, kept)

    def put_adapter(self, folder: Path) -> list[Any]:
        """Put the files that `write_adapter` wrote into Ray's store; return the reference to them, in a list.

        Servers on other machines fetch them from there, and not through the driver.
        """
        import ray

        return [ray.put(AdapterFiles.read(folder))]

    def hold_probe(self, probe: Probe | None) -> None:
        from lorarl_trainer.lora.probe import probe_adapter

        self.backend.hold(probe and probe_adapter(probe, self.backend.adapter))

    def submit(self, requests: Mapping[int, GenerationRequest]) -> None:
        """Queue requests by numbers that no others have meanwhile. It may be called beside `results`, in a thread."""
        assert self.engine is not None, "a job that generates has an engine"
        self.engine.submit(requests)

    def results(self, until: int) -> Iterator[CompletionChunk]:
        """Generate what is queued, and what is queued meanwhile; yield it in chunks as it ends.

        All ranks of a tensor-parallel engine make the same completions. Only the first rank yields them. They take
        requests below the number `until` only, since all have to take the same.
        """
        assert self.engine is not None and self._plan is not None, "a job that generates has an engine"
        ranks = self._plan.layout.engine_ranks
        with self._clock.part("first generation"), self._memory_explained("vLLM generated"):
            for chunk in self.engine.results(until if ranks > 1 else None):
                if self._rank.rank % ranks == 0:
                    yield chunk
        self._watch.ended("generation")

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update."""
        with self._clock.part("first update"), self._memory_explained("the adapter was updated"):
            asleep = self.engine.sleep() if self.engine else {}
            result = self.backend.update(request)
        self._watch.ended("training")
        return replace(
            result,
            metrics={**result.metrics, **self._watch.columns},
            seconds={**asleep, **result.seconds},
            warnings=self._watch.warnings(),
        )

    def accumulate(self, request: UpdateRequest, *, with_gradient: bool) -> Accumulated:
        """Add the gradient of the samples' loss to those before it, without a step. For a single worker."""
        if self.engine:
            self.engine.sleep()
        with self._memory_explained("a gradient was computed"):
            return self.backend.accumulate(request, with_gradient=with_gradient)

    def log_probabilities(self, samples: Samples, temperature: float, of: Policy = "policy") -> list[Any]:
        if self.engine:
            self.engine.sleep()
        with self._memory_explained("log-probabilities were computed"):
            return self.backend.log_probabilities(samples, temperature, of)

    def values(self, samples: Samples) -> list[Any]:
        if self.engine:
            self.engine.sleep()
        with self._memory_explained("the critic's values were computed"):
            return self.backend.values(samples)

    def publish(self, step: int, adapter_version: int, driver: DriverState, results: CardResults) -> None:
        """Take part in a checkpoint (collective). The first worker, a `CheckpointingWorker`, publishes it."""
        with self._memory_explained("a checkpoint was taken"):
            self.backend.help_snapshot()

    def restore(self, state: State | None = None) -> None:
        """Resume from a checkpoint's state (collective). Only the first worker, a `CheckpointingWorker`, has it."""
        from lorarl_trainer.lora.tensor_file import read_tensors
        from lorarl_trainer.workers.state import shared

        with self._memory_explained("the training state was restored"):
            state = shared(state, self._device.select(self._rank.local_rank))
            tensors = {name: tensor for file in state.files for name, tensor in read_tensors(memoryview(file)).items()}
            self.backend.restore(tensors, state.updates, state.critic_updates)

    def startup_spans(self) -> list[Span]:
        """Return the spans of this worker's start so far."""
        return self._clock.parts

    def drain_asked(self) -> bool:
        return drain_asked()

    def process(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def pod(self) -> str:
        """Return the name of this worker's pod."""
        return pod_name()

    @property
    def plan(self) -> ExecutionPlan:
        """How the job runs here, once its model is loaded."""
        assert self._plan is not None, "`load` comes before"
        return self._plan

    def _of_the_jobs_rank(self, stored: InitialAdapter, field: str) -> Mapping[str, torch.Tensor]:
        from lorarl_trainer.lora.experts import trained_part
        from lorarl_trainer.lora.peft_format import read_adapter

        config = self.backend.adapter.config
        adapter = trained_part(read_adapter(stored.weights, field), self.backend.layout.shapes)
        if (stored.rank, stored.expert_rank or config.expert_rank) == (config.rank, config.expert_rank):
            return adapter
        return self.backend.widen(adapter, stored.scale, self._spec.trainer.seed)

    def _start_engine(self, model_path: Path, stop_token_ids: tuple[int, ...], plan: ExecutionPlan) -> ColocatedEngine:
        from lorarl_trainer.engine.colocated import ColocatedEngine

        trained = self.backend.adapter, self.backend.model
        return ColocatedEngine(self._device, self._spec, *trained, model_path, stop_token_ids, plan, self._clock)

    def _memory_explained(self, doing: str) -> AbstractContextManager[None]:
        return gpu_memory_explained(doing, self._plan.table if self._plan else None)

    def _warnings(self, plan: ExecutionPlan) -> tuple[str, ...]:
        from lorarl_trainer.planning.backend_choice import chosen_instead

        chosen = chosen_instead(self._spec, plan.backend)
        warnings = [*([chosen] if chosen else []), *self.backend.warnings]
        warnings += self.engine.engine.warnings if self.engine else ()
        if self.engine and plan.layout.unshared:
            warnings.append(
                f"vLLM holds its own copy of the base model, which takes that much more memory: {plan.layout.unshared}"
            )
        return tuple(warnings)

    def _init_process_group(self) -> None:
        """Initialise torch.distributed. A single worker needs no address."""
        import torch.distributed as dist

        rank, backend = self._rank, self._device.distributed_backend
        if dist.is_initialized():
            return
        if rank.master_address is None:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            address = f"tcp://{rank.master_address}:{rank.master_port}"
            dist.init_process_group(backend, init_method=address, rank=rank.rank, world_size=rank.world_size)


def _redirect_output(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
