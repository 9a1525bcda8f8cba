"""One worker: a process with one device that holds a Megatron rank and, for reinforcement learning, a vLLM rank.

A plain class, so that tests use it without Ray; `worker_group` makes Ray actors of it. Nothing heavy is imported before `start`:
the platform sets the process's environment first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint.contents import ADAPTER, STATE_FILE_BYTES
from lorarl_trainer.devices import get_platform
from lorarl_trainer.devices.imports import quick_imports
from lorarl_trainer.errors import OutOfMemoryError
from lorarl_trainer.lora.files import INIT_FROM
from lorarl_trainer.pods.drain import drain_asked, register
from lorarl_trainer.storage.secrets import Secrets
from lorarl_trainer.threads import begin
from lorarl_trainer.timing import Span, StartClock

if TYPE_CHECKING:
    from lorarl_trainer.checkpoint import Found, Published
    from lorarl_trainer.engine.colocated import ColocatedEngine
    from lorarl_trainer.planning.memory import MemoryPlan
    from lorarl_trainer.samples.types import CompletionChunk, Samples, UpdateRequest, UpdateResult
    from lorarl_trainer.storage import Data


@dataclass(frozen=True)
class Place:
    """Where a worker stands among the others.

    Attributes:
        rank: 0 to world_size - 1.
        local_rank: on its machine: which GPU it has.
        master_address, master_port: where the workers meet; None for a single worker.
        threads: CPU threads it may use.
    """

    rank: int
    world_size: int
    local_rank: int
    master_address: str | None
    master_port: int | None
    threads: int


@dataclass(frozen=True)
class Built:
    """What a worker found when it had built its model.

    Attributes:
        modules: full Hugging Face names of the layers with an adapter.
        trainable_parameters, total_parameters: over all tensor-parallel ranks.
        memory: what takes how much of a GPU's memory, as a table; None on CPU.
        warnings: what the user should know of the model.
    """

    modules: tuple[str, ...]
    trainable_parameters: int
    total_parameters: int
    memory: str | None
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Resumed:
    """Where a run begins.

    Attributes:
        step: of the checkpoint it goes on from; 0 for a run from the start.
        position: rows taken so far.
        adapter_uri: of that checkpoint.
        warnings: checkpoints that were passed over, and why.
        published: that checkpoint; None where there is none, or it is only now being published.
    """

    step: int
    position: int
    adapter_uri: str | None
    warnings: tuple[str, ...]
    published: Published | None = None


class Worker:
    """One device's share of the job."""

    def __init__(self, spec: LoRARLJobSpec, place: Place, log: Path | None = None) -> None:
        """Set up the process; `log` takes everything that libraries print here."""
        if log is not None:
            _redirect_output(log)
        self._clock = StartClock(f"worker {place.rank}", "worker process")
        self._spec, self._place = spec, place
        self._platform = get_platform(spec.cluster.gpus_per_node)
        os.environ.update(self._platform.environment(place.threads))
        os.environ.update(RANK=str(place.rank), WORLD_SIZE=str(place.world_size), LOCAL_RANK=str(place.local_rank))
        register(f"worker-{place.rank}")
        self._version = 0  # `sync` adds one: the first adapter that vLLM gets is version 1
        self._imported = False
        self._rollouts: ColocatedEngine | None = None
        self._found: Found | None = None
        self._published: list[Published] = []

    def preload(self) -> None:
        """Import torch, Megatron and vLLM: most of a start's time, and it needs nothing of the job."""
        if self._imported:
            return
        for library in ("megatron", "megatron.bridge", "megatron.core"):
            logging.getLogger(library).setLevel(logging.ERROR)  # they tell of each optional package that is not there
        with self._clock.part("imports"), quick_imports():
            with self._clock.part("imports/torch"):
                import torch  # noqa: F401  # for the time that it takes
            with self._clock.part("imports/Megatron"):
                self._platform.prepare_megatron()
                import megatron.bridge.peft.canonical_lora  # noqa: F401  # with it comes all of Megatron that a worker needs
            if self._spec.algorithm.type != "sft":
                from lorarl_trainer.engine.vllm.engine import import_vllm

                with self._clock.part("imports/vLLM"):
                    import_vllm()
        self._imported = True

    def start(self, model_path: Path, stop_token_ids: tuple[int, ...], first_adapter: bytes | None) -> Built:
        """Load the base model, start the engine, and make the adapter: a new one, or that of the safetensors file `first_adapter`."""
        spec, platform = self._spec, self._platform
        self.preload()
        from lorarl_trainer.backends.megatron import state
        from lorarl_trainer.backends.megatron.layout import AdapterLayout
        from lorarl_trainer.backends.megatron.model import LoraModel
        from lorarl_trainer.backends.megatron.optimizer import AdapterOptimizer
        from lorarl_trainer.backends.megatron.update import Trainer
        from lorarl_trainer.lora import peft_format

        with self._clock.part("device"):
            self._meet()
            plan = self._plan_memory(model_path)
        trainer = spec.trainer
        with self._clock.part("trainer"):
            tensor_parallel_size, recompute = trainer.tensor_parallel_size, trainer.recompute
            self._model = LoraModel(
                platform, model_path, spec.adapter, spec.precision, tensor_parallel_size, recompute, self._clock
            )
            with self._clock.part("trainer/layout"):
                self._layout = AdapterLayout(self._model)
            self._optimizer = AdapterOptimizer(self._model, spec.trainer)
            self._trainer = Trainer(
                platform, self._model, self._optimizer, spec.trainer.tokens_per_micro_batch, spec.adapter.dropout
            )
        if spec.algorithm.type != "sft":
            from lorarl_trainer.engine.colocated import ColocatedEngine

            with self._clock.part("engine"):
                self._rollouts = ColocatedEngine(
                    platform, spec, self._model, self._layout, model_path, stop_token_ids, plan, self._clock
                )
        with self._clock.part("adapter"):
            if first_adapter is None:
                adapter = state.new_adapter(self._model, self._layout, spec.trainer.seed)
            else:
                adapter = peft_format.read_adapter(first_adapter, INIT_FROM)
            state.load_adapter(self._layout, self._optimizer, adapter, INIT_FROM)
            counts = self._model.counts()
        return Built(
            modules=tuple(name for target in self._model.targets for name in target.hf_names),
            trainable_parameters=counts.trainable,
            total_parameters=counts.total,
            memory=plan.table() if plan else None,
            warnings=self._warnings(),
        )

    def open_checkpoints(
        self, job_name: str, job_uid: str | None, secrets: Secrets, identity: Mapping[str, Any], unpublished: Path
    ) -> None:
        """Name the job's checkpoints, and begin to read the newest one while `start` loads the model. For the first worker alone.

        Raises:
            LorarlError: the store cannot be used.
        """
        from lorarl_trainer.checkpoint.open import open_checkpoints

        self._store, self._unpublished = open_checkpoints(self._spec, job_name, job_uid, secrets, identity), unpublished
        self._metadata = {"job": job_name, "baseModelFingerprint": identity["model.fingerprint"]}
        self._read_ahead = (
            begin(self._store.newest_whole, [unpublished]) if self._spec.checkpoint.resume == "Auto" else None
        )

    def claim_checkpoints(self) -> Resumed:
        """Take over the job's checkpoints and find the one to go on from. For the first worker alone, after `open_checkpoints`.

        Raises:
            LorarlError: the store cannot be used, or holds another training.
        """
        from lorarl_trainer.checkpoint import BackgroundUploader

        if self._read_ahead:
            self._read_ahead.result()
            self._read_ahead = None  # or it would keep a whole checkpoint in memory
        store = self._store
        started = store.start(self._spec.checkpoint.resume, [self._unpublished])
        self._found = started.found
        self._uploader = BackgroundUploader(store, self._unpublished, self._published.append)
        if started.found is None:
            return Resumed(0, 0, None, started.warnings)
        checkpoint = started.found.checkpoint
        published = store.published(started.found)
        if published is None:  # the run before could not
            self._uploader.submit(checkpoint)
        return Resumed(
            checkpoint.step, checkpoint.state["position"], f"{started.found.uri}/{ADAPTER}", started.warnings, published
        )

    def found_state(self) -> tuple[list[Data], dict[str, Any], int]:
        """Return the state to go on from: tensors, facts, and the adapter's version. For the first worker alone."""
        assert self._found is not None, "asked once, and only when there is a checkpoint"
        checkpoint, self._found = self._found.checkpoint, None
        return checkpoint.state_tensors, checkpoint.state, checkpoint.adapter_version

    def restore(self, found: tuple[list[Data], dict[str, Any], int] | None = None) -> None:
        """Go on from what the first worker's `found_state` returned; None: from this worker's own."""
        from lorarl_trainer.backends.megatron import state
        from lorarl_trainer.lora.tensor_file import read_tensors

        files, facts, version = found or self.found_state()
        tensors = {name: tensor for file in files for name, tensor in read_tensors(file).items()}
        state.load_state(self._layout, self._optimizer, tensors, facts["updates"])
        self._version = version - 1  # `sync` adds one

    def sync(self) -> tuple[int, float]:
        """Bring the trainer's adapter to vLLM as the next version; return it and the seconds it took."""
        self._version += 1
        with self._clock.part("first sync"):
            return self._version, self._rollouts.sync(self._version) if self._rollouts else 0.0

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> Iterator[CompletionChunk]:
        """Generate a completion a prompt (greedily without seeds); yield them in parts as they end.

        All ranks of a tensor-parallel engine make the same ones, of which the first rank's travel: the others yield nothing.
        """
        assert self._rollouts is not None, "sft has no rollouts"
        first = self._place.rank % self._spec.rollout.tensor_parallel_size == 0
        # An evaluation of few rows may leave nothing to some engines.
        with self._clock.part("first generation") if prompts else nullcontext():
            for part in self._rollouts.generate(prompts, seeds):
                if first:
                    yield part

    def start_parts(self) -> list[Span]:
        """Return the parts of this worker's start so far."""
        return self._clock.parts

    def drain_asked(self) -> bool:
        """Whether this worker's pod is about to be taken away."""
        return drain_asked()

    def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update.

        Raises:
            OutOfMemoryError: of the GPU's memory.
        """
        with self._clock.part("first update"):
            asleep = self._rollouts.sleep() if self._rollouts else {}
            with _gpu_memory_told():
                result = self._trainer.update(request)
        return replace(result, seconds={**asleep, **result.seconds})

    def log_probabilities(self, samples: Samples, temperature: float) -> list[Any]:
        """Return the trainer's log-probabilities of each sample's response tokens."""
        with _gpu_memory_told():
            return self._trainer.log_probabilities(samples, temperature)

    def publish(self, step: int, position: int) -> None:
        """Take a checkpoint (collective) and hand it to the uploader; training goes on while it is published.

        Raises:
            LorarlError: an earlier checkpoint could not be published.
        """
        from lorarl_trainer.backends.megatron import state
        from lorarl_trainer.checkpoint import build_checkpoint
        from lorarl_trainer.lora import peft_format
        from lorarl_trainer.lora.tensor_file import in_parts, write_tensors
        from lorarl_trainer.storage.base_model import base_model_name

        adapter = self._model.export()
        tensors = state.gather_state(self._layout, self._optimizer)
        if self._place.rank != 0:
            return
        spec, base = self._spec, base_model_name(self._spec)
        metadata = self._metadata | {
            "step": step,
            "adapterVersion": self._version,
            "baseModel": base,
            "adapterType": spec.adapter.type,
        }
        checkpoint = build_checkpoint(
            step,
            self._version,
            adapter_config=peft_format.adapter_config(
                adapter, spec.adapter.rank, spec.adapter.alpha, base, self._model.linear_names
            ),
            adapter_tensors=peft_format.weights_bytes(adapter),
            metadata=metadata,
            state={"updates": self._optimizer.updates, "position": position},
            state_tensors=[write_tensors(part) for part in in_parts(tensors, STATE_FILE_BYTES)],
        )
        self._uploader.submit(checkpoint)

    def uploads(self) -> list[Published]:
        """Return the checkpoints published so far. For the first worker alone.

        Raises:
            LorarlError: one could not be published.
        """
        self._uploader.raise_if_failed()
        return list(self._published)

    def drain_uploads(self, timeout_seconds: float) -> list[Published]:
        """Wait until everything is published. For the first worker alone."""
        self._uploader.drain(timeout_seconds)
        return list(self._published)

    def base_digest(self) -> str:
        """Return a SHA-256 over the frozen base parameters of this rank: it never changes."""
        import torch

        digest = hashlib.sha256()
        for name, parameter in self._model.base_parameters():
            digest.update(name.encode())
            digest.update(parameter.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def _warnings(self) -> tuple[str, ...]:
        found = [
            f"sequences are padded, which is slower than packed: the model has {what}"
            for what in self._model.unpackable
        ]
        base = self._rollouts.base if self._rollouts else None
        if base and base.refused:
            found.append(f"vLLM has a base model of its own, which takes that much more memory: {base.refused}")
        return tuple(found)

    def _plan_memory(self, model_path: Path) -> MemoryPlan | None:
        """Plan the GPU's memory; None on CPU.

        Raises:
            InputError: the job cannot fit.
        """
        from lorarl_trainer.planning.memory import plan
        from lorarl_trainer.planning.model_sizes import read_model_sizes
        from lorarl_trainer.planning.remedies import require_fit

        gpu = self._platform.memory()
        if gpu is None:
            return None
        found = plan(self._spec, read_model_sizes(model_path), gpu)
        require_fit(found)
        return found

    def _meet(self) -> None:
        """Initialise torch.distributed. A single worker needs no address."""
        import torch.distributed as dist

        place, backend = self._place, self._platform.distributed_backend
        self._platform.device(place.local_rank)
        if dist.is_initialized():
            return
        if place.master_address is None:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            address = f"tcp://{place.master_address}:{place.master_port}"
            dist.init_process_group(backend, init_method=address, rank=place.rank, world_size=place.world_size)


@contextmanager
def _gpu_memory_told() -> Iterator[None]:
    """Say in a user's words that the GPU's memory has run out."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"the GPU's memory is used up ({str(error).partition('. GPU')[0]}). Lower spec.trainer.tokensPerMicroBatch, or set "
            "spec.trainer.recompute: selective, or spec.rollout.offload: [kv_cache]. What was planned is told at the start of the run."
        ) from error


def _redirect_output(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab", buffering=0) as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
