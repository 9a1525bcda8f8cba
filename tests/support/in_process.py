"""A worker in the test's own process, and a worker group of one without Ray: everything else is the product's own."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.checkpoint import Best, Published
from lorarl_trainer.engine.colocated import ColocatedEngine
from lorarl_trainer.engine.vllm.engine import RolloutEngine
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.lora.config import AdapterConfig, Probe
from lorarl_trainer.lora.experts import completed
from lorarl_trainer.lora.peft_format import adapter_config, write_adapter
from lorarl_trainer.lora.targets import Target
from lorarl_trainer.protocols.workers import (
    UPLOAD_SECONDS,
    Built,
    CardResults,
    DriverState,
    Generated,
    Generators,
    JobCheckpoints,
    Resumed,
    TakeCompletions,
)
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import GenerationRequest, LossChoice, Policy, UpdateRequest, UpdateResult
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.samples.wire import CompletionChunk, Samples
from lorarl_trainer.timing import Span
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from lorarl_trainer.workers.worker import Rank

STOP = (2,)
_numbers = itertools.count()  # of requests
ALONE = Rank(rank=0, world_size=1, local_rank=0, master_address=None, master_port=None)


def tiny_job(model: Path, out: Path, **changes: object) -> LoRARLJob:
    """A job on a tiny model; `changes` are fields by dotted path with __ for the dots: adapter__rank=4."""
    manifest = f"""
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: tiny}}
spec:
  model: {{uri: "file://{model}"}}
  adapter: {{rank: 8, alpha: 16, targetModules: [all-linear]}}
  reward: {{type: exact}}
  algorithm: {{type: grpo, groupSize: 4}}
  data: {{train: {{uri: "file://{out}/train.jsonl"}}, chatTemplate: false}}
  rollout: {{promptsPerStep: 4, maxPromptTokens: 16, maxResponseTokens: 8}}
  trainer: {{steps: 4, learningRate: 1.0e-2}}
  checkpoint: {{uri: "file://{out}/checkpoints", every: 2}}
"""
    return load_job(manifest, [f"spec.{path.replace('__', '.')}={value}" for path, value in changes.items()])


class Colocated:
    """A started worker and what tests ask of it."""

    def __init__(self, model: Path, out: Path, adapters: int = 1, **changes: object) -> None:
        """`adapters`: that the engine is to have at a time."""
        self.model, self.out = model, out
        self.made_of: dict[str, Any] = {}  # goes into the adapters' metadata
        self.job = tiny_job(model, out, **changes)
        self.spec = self.job.spec
        self.worker = CheckpointingWorker(self.spec, ALONE)
        self.version = 0
        if "_experts" in (model / "config.json").read_text():
            forget_groups()
        self.built: Built = self.worker.start(model, STOP, None, adapters=adapters)

    @property
    def rollouts(self) -> ColocatedEngine:
        assert self.worker.engine is not None, "sft has none"
        return self.worker.engine

    @property
    def engine(self) -> RolloutEngine:
        return self.rollouts.engine

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return self.worker.backend.model.parameters

    def sync(self) -> float:
        """Bring the adapter to the engine as the next version."""
        self.version += 1
        return self.worker.sync(self.version)

    def randomise(self, seed: int = 0, scale: float = 0.1) -> None:
        """Give the adapter values that matter, B included."""
        adapter = random_adapter(self, seed, scale)
        self.load(adapter)

    def load(self, adapter: Mapping[str, torch.Tensor]) -> None:
        self.worker.backend.load_adapter(adapter, "test")

    def export(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.worker.backend.model.export().items()}

    def write_peft(self, folder: Path) -> Path:
        """Write the adapter as a checkpoint has it."""
        model = self.worker.backend.model
        adapter = completed(self.export(), model.linear_names)
        write_adapter(
            folder,
            adapter,
            adapter_config(
                adapter,
                self.worker.backend.adapter.config,
                str(self.model),
                model.linear_names,
                excluded=model.excluded_names,
            ),
        )
        return folder

    def generate(self, prompts: Sequence[list[int]], seeds: Sequence[int] | None = None) -> list[Completion]:
        return made(self.worker, wanted(prompts, range(len(prompts)) if seeds is None else seeds))

    def greedy(self, prompts: Sequence[list[int]]) -> list[list[int]]:
        return [c.tokens.tolist() for c in made(self.worker, wanted(prompts, None))]

    def trainer_logprobs(self, samples: Sequence[Sample], temperature: float = 1.0) -> list[np.ndarray]:
        return self.worker.log_probabilities(Samples(samples), temperature)

    def vllm_buffers(self) -> list[torch.Tensor]:
        """vLLM's stacked adapter tensors of the slot in use, copied."""

        def copies(worker: Any) -> list[torch.Tensor]:
            modules = worker.model_runner.lora_manager._adapter_manager.modules
            return [
                t.clone()
                for name in sorted(modules)
                for t in (*modules[name].lora_a_stacked, *modules[name].lora_b_stacked)
            ]

        return list(self.engine.llm_engine.collective_rpc(copies)[0])

    def vllm_base(self) -> dict[str, torch.Tensor]:
        """vLLM's base parameters, copied."""
        return dict(
            self.engine.llm_engine.collective_rpc(
                lambda w: {n: p.detach().clone() for n, p in w.model_runner.model.named_parameters() if "lora" not in n}
            )[0]
        )

    def close(self) -> None:
        del self.worker
        gc.collect()


def forget_groups() -> None:
    """Let vLLM make its groups of ranks again: it has one of experts only if a process's first model has experts."""
    import_vllm()
    from vllm.distributed.parallel_state import destroy_model_parallel

    destroy_model_parallel()


class OneWorker:
    """`WorkerGroup` for a single worker in this process. mypy holds it to the protocol where a `Session` takes it."""

    def __init__(self, worker: CheckpointingWorker) -> None:
        self.worker = worker
        self._asked: dict[int, tuple[int, TakeCompletions]] = {}
        self._next = 0

    async def open_checkpoints(self, of: JobCheckpoints) -> None:
        self.worker.open_checkpoints(of)

    async def resume(self) -> Resumed:
        resumed = self.worker.claim_checkpoints()
        if resumed.step:
            self.worker.restore()
        return resumed

    async def sync(self, version: int, *, verify: bool = False) -> float:
        return self.worker.sync(version, verify)

    async def hold_probe(self, probe: Probe | None) -> None:
        self.worker.hold_probe(probe)

    def lane(self) -> Generators:
        return self

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        first = self._next
        self._next += len(requests)
        self._asked |= {first + index: (index, take) for index in range(len(requests))}
        self.worker.submit(dict(enumerate(requests, first)))

    async def results(self) -> Generated:
        generated = Generated()
        while self._asked:
            for chunk in self.worker.results(self._next):
                generated = Generated(chunk.seconds, chunk.occupancy)
                for number, completion in zip(chunk.numbers, chunk.completions, strict=True):
                    index, take = self._asked.pop(number)
                    take([index], [completion])
                await asyncio.sleep(0)  # others may submit more
        return generated

    async def update(self, request: UpdateRequest) -> UpdateResult:
        return self.worker.update(request)

    async def log_probabilities(
        self, samples: Sequence[Sample], temperature: float, of: Policy = "policy"
    ) -> list[Floats]:
        return self.worker.log_probabilities(Samples(samples), temperature, of)

    async def values(self, samples: Sequence[Sample]) -> list[Floats]:
        return self.worker.values(Samples(samples))

    async def publish(self, step: int, adapter_version: int, driver: DriverState, results: CardResults) -> None:
        self.worker.publish(step, adapter_version, driver, results)

    async def complete(self, step: int, results: CardResults, value: float | None) -> None:
        self.worker.complete(step, results, value)

    async def compare(self, values: Mapping[int, float]) -> None:
        self.worker.compare(values)

    async def best(self) -> Best | None:
        return self.worker.best()

    async def uploads(self) -> list[Published]:
        return self.worker.uploads()

    async def published(self) -> list[Published]:
        return self.worker.published()

    async def drain_uploads(self, seconds: float = UPLOAD_SECONDS) -> list[Published]:
        return self.worker.drain_uploads(seconds)

    async def finish(self) -> None:
        self.worker.finish()

    async def startup_spans(self) -> list[Span]:
        return self.worker.startup_spans()

    async def drain_asked(self) -> bool:
        return self.worker.drain_asked()


class Generates(Protocol):
    """What requests go to: a worker, or an engine in it."""

    def submit(self, requests: Mapping[int, GenerationRequest]) -> None: ...

    def results(self, until: int) -> Iterable[CompletionChunk]: ...


def wanted(
    prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None, **fields: Any
) -> list[GenerationRequest]:
    """A request for a completion of each prompt, greedily without seeds."""
    return [
        GenerationRequest(prompt, seed=None if seeds is None else seeds[index], **fields)
        for index, prompt in enumerate(prompts)
    ]


def made(by: Generates, requests: Sequence[GenerationRequest]) -> list[Completion]:
    """The completion of each request, as far as this rank hands it over."""
    numbered = {next(_numbers): request for request in requests}
    by.submit(numbered)
    parts = list(by.results(max(numbered) + 1))
    found = dict(pair for part in parts for pair in zip(part.numbers, part.completions, strict=True))
    return [found[number] for number in numbered if number in found]


def random_adapter(worker: Colocated, seed: int = 0, scale: float = 0.1) -> dict[str, torch.Tensor]:
    """An adapter of the worker's shapes with normal values. Tensors that are one parameter are equal."""
    stream = torch.Generator().manual_seed(seed)
    adapter = {
        name: scale * torch.randn(shape, generator=stream)
        for name, shape in sorted(worker.worker.backend.layout.shapes.items())
    }
    backend, first = worker.worker.backend, dict[tuple[str, str], str]()
    for tensor, owner in owners(backend.model.targets, backend.adapter.config).items():
        adapter[tensor] = adapter[first.setdefault(owner, tensor)].clone()
    return adapter


def owners(targets: Sequence[Target], config: AdapterConfig) -> dict[str, tuple[str, str]]:
    """Whose each tensor of an adapter is. The parts of a fused `lora` adapter have one A."""
    found = {}
    for target in targets:
        for name in target.hf_names:
            found[f"{name}.lora_A.weight"] = ("A", config.owner(target.hf_names[0], "A"))
            found[f"{name}.lora_B.weight"] = ("B", config.owner(name, "B"))
    return found


def prompts(count: int = 12, seed: int = 0) -> list[list[int]]:
    """Random prompts of 3 to 15 tokens."""
    stream = np.random.default_rng(seed)
    return [stream.integers(4, 60, size=3 + index % 13).tolist() for index in range(count)]


def samples_of(prompts: Sequence[list[int]], completions: Sequence[Completion], advantage: float = 1.0) -> list[Sample]:
    """Samples to train on, with the rollout's log-probabilities."""
    return [
        Sample(np.concatenate([p, c.tokens]), len(p), advantage, c.logprobs, c.kept)
        for p, c in zip(prompts, completions, strict=True)
    ]


def update_request(samples: Sequence[Sample], **changes: object) -> UpdateRequest:
    """An on-policy update with PPO's clipped loss and the CPU's tolerance."""
    values: dict[str, object] = {
        "samples": Samples(samples),
        "loss": LossChoice("policy_gradient", clip_range=0.2),
        "total_tokens": sum(sample.response_length for sample in samples),
        "temperature": 1.0,
        "learning_rate": 1e-2,
        "seed": 0,
        "on_policy": True,
        "limits": AgreementLimits(tolerance=1e-5),
    }
    return UpdateRequest(**(values | changes))  # type: ignore[arg-type]


def mean_difference(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """The mean absolute difference over all tokens."""
    return float(np.mean(np.concatenate([np.abs(a - b) for a, b in zip(left, right, strict=True)])))


def worst(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """The largest absolute difference."""
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))
