"""The workers as Ray actors: one per device, in one placement group, addressed together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint import Best, Published
from lorarl_trainer.devices.base import least_memory
from lorarl_trainer.errors import in_one_line
from lorarl_trainer.lora.config import Probe
from lorarl_trainer.lora.initial import InitialAdapter
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
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.packing import split_evenly
from lorarl_trainer.samples.requests import GenerationRequest, Policy, UpdateRequest, UpdateResult
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.storage.base_model import changed_meanwhile
from lorarl_trainer.timing import Span
from lorarl_trainer.workers.base_model import fetch_fitting_model
from lorarl_trainer.workers.engines import Engines
from lorarl_trainer.workers.failures import Failures
from lorarl_trainer.workers.processes import Processes
from lorarl_trainer.workers.stacks import stacks_of


class WorkerGroup:
    """All workers of a job."""

    def __init__(self, spec: LoRARLJobSpec, processes: Processes, servers: Servers | None = None) -> None:
        """Take the workers' processes.

        Args:
            spec: the job, on the machines of these workers.
            processes: the workers'.
            servers: what generates in the place of engines in the workers; None if those do.
        """
        self.spec, self._servers = spec, servers
        self.size = spec.world_size
        self._submitting = asyncio.Lock()
        self._trainer_ranks = 1  # until `start`, where the workers have chosen it
        self._actors, self._nodes, self._end = processes.actors, processes.nodes, processes.end
        self._folders: list[Path] = []
        self._ids: list[int] = []  # of the processes
        self._failures = Failures(spec, self._nodes, self._actors, processes.logs)

    async def fetch_model(self) -> str:
        """Fetch the base model to each machine, once for all its workers, while they import their engines.

        Returns:
            The model's fingerprint.

        Raises:
            LorarlError: a machine cannot get the model, or has no room for it.
        """
        models = await self._await(lambda: self._nodes.call(fetch_fitting_model, self.spec))
        fingerprints = {model.fingerprint for model in models}
        if len(fingerprints) > 1:
            raise changed_meanwhile(self.spec)
        self._folders = [
            model.folder for model, bundles in zip(models, self._nodes.bundles, strict=True) for _ in bundles
        ]
        return str(fingerprints.pop())

    async def open_checkpoints(self, of: JobCheckpoints) -> None:
        """Name the job's checkpoints. The first worker reads the newest one while `start` loads the model.

        Raises:
            LorarlError: the store cannot be used.
        """
        await self._first("open_checkpoints", of)

    async def start(
        self,
        stop_token_ids: tuple[int, ...],
        initial_adapter: InitialAdapter | None,
        teacher: InitialAdapter | None = None,
    ) -> Built:
        """Build model, adapter and engine in every worker. `fetch_model` comes before."""
        import ray

        self._ids = await self._all("process")
        there = least_memory(await self._all("memory"))

        def calls() -> list[Any]:
            # One object each, however many workers read it.
            adapter, teaches = (one and ray.put(one) for one in (initial_adapter, teacher))
            return [
                actor.start.remote(folder, stop_token_ids, adapter, there, teaches)
                for actor, folder in zip(self._actors, self._folders, strict=True)
            ]

        built: Built = (await self._await(calls))[0]
        self._trainer_ranks, engine_ranks = built.ranks
        self._engines = Engines(self._actors, engine_ranks)
        if self._servers:
            self._servers.begin(stop_token_ids, partial(self.log_probabilities, of="policy"))
        return built

    async def resume(self) -> Resumed:
        resumed: Resumed = await self._first("claim_checkpoints")
        if resumed.step:
            await self._all("restore")  # the state travels between workers, not through this process
        return resumed

    async def sync(self, version: int, *, verify: bool = False) -> float:
        """Bring the adapter to every engine or server as this version; return the slowest one's seconds."""
        if (servers := self._servers) is None:
            return max(await self._all("sync", version, verify))
        began, written = time.perf_counter(), servers.version_of(version)
        await self._all("write_adapter", written.folder, servers.folders_in_use())
        if servers.origin.takes_files:
            [files] = await self._first("put_adapter", written.folder)
            written = replace(written, files=files)
        await self._await(lambda: [servers.take(written)])
        return time.perf_counter() - began

    async def hold_probe(self, probe: Probe | None) -> None:
        self._adapter_changes()
        await self._all("hold_probe", probe)

    def lane(self) -> Generators:
        return self._servers.lane(self._await) if self._servers else self

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        """Let the engines generate these completions, and hand each to `take` when it has ended."""
        async with self._submitting:
            await self._await(lambda: self._engines.submit(requests, take))
            self._engines.start()

    async def results(self) -> Generated:
        """Wait until all that was submitted has ended."""
        try:
            while self._engines.running:
                await self._await(lambda: self._engines.running)
        finally:
            await self._engines.stop()
        return self._engines.made()

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update, with the request's samples dealt out to the data-parallel workers."""
        self._adapter_changes()
        requests = [replace(request, samples=share) for share in self._dealt(request.samples)[1]]
        results: list[UpdateResult] = await self._await(
            lambda: [
                actor.update.remote(requests[rank // self._trainer_ranks]) for rank, actor in enumerate(self._actors)
            ]
        )
        return replace(results[0], warnings=tuple({text: None for result in results for text in result.warnings}))

    def _adapter_changes(self) -> None:
        if self._servers:
            self._servers.let_go()

    async def log_probabilities(
        self, samples: Sequence[Sample], temperature: float, of: Policy = "policy"
    ) -> list[Floats]:
        return await self._by_sample("log_probabilities", samples, temperature, of)

    async def values(self, samples: Sequence[Sample]) -> list[Floats]:
        return await self._by_sample("values", samples)

    async def startup_spans(self) -> list[Span]:
        return max(await self._all("startup_spans"), key=lambda spans: max((span.end for span in spans), default=0.0))

    async def publish(self, step: int, adapter_version: int, driver: DriverState, results: CardResults) -> None:
        """Take a checkpoint and hand it to the first worker's uploader."""
        await self._all("publish", step, adapter_version, driver, results)

    async def complete(self, step: int, results: CardResults, value: float | None) -> None:
        """Add an evaluation's results to its step's checkpoint."""
        await self._first("complete", step, results, value)

    async def compare(self, values: Mapping[int, float]) -> None:
        await self._first("compare", values)

    async def best(self) -> Best | None:
        best: Best | None = await self._first("best")
        return best

    async def uploads(self) -> list[Published]:
        """Return the checkpoints published so far."""
        return list(await self._first("uploads"))

    async def published(self) -> list[Published]:
        return list(await self._first("published"))

    async def drain_uploads(self, seconds: float = UPLOAD_SECONDS) -> list[Published]:
        return list(await self._first("drain_uploads", seconds))

    async def finish(self) -> None:
        await self._first("finish")

    async def drain_asked(self) -> bool:
        return any(await self._all("drain_asked"))

    async def pods(self) -> tuple[str, ...]:
        """Return the names of the workers' pods, sorted."""
        return tuple(sorted(set(await self._all("pod"))))

    def stacks(self, seconds: float = 8.0) -> list[str]:
        """Return by rank where each worker's process stands, although it answers nothing else. Any thread may ask."""
        import ray

        left = iter(self._ids)
        by_node = [[pid for pid, _ in zip(left, bundles, strict=False)] for bundles in self._nodes.bundles]
        calls = self._nodes.call_each(stacks_of, [(pids,) for pids in by_node])
        ray.wait(calls, num_returns=len(calls), timeout=seconds)
        found: list[str] = []
        for pids, call in zip(by_node, calls, strict=True):
            try:
                found += ray.get(call, timeout=0)
            except ray.exceptions.RayError as error:
                found += [f"process {pid}: its machine does not answer: {in_one_line(error)}\n" for pid in pids]
        return found

    @property
    def machines(self) -> frozenset[str]:
        """Ray's ids of the machines that the workers were placed on."""
        return self._nodes.machines

    def kill(self) -> None:
        """End the worker processes at once and give the devices back."""
        self._end()

    async def _by_sample(self, method: str, samples: Sequence[Sample], *arguments: Any) -> list[Floats]:
        """Return what the data-parallel workers compute of their samples."""
        indices, shares = self._dealt(samples)
        results = await self._await(
            lambda: [
                getattr(actor, method).remote(shares[rank // self._trainer_ranks], *arguments)
                for rank, actor in enumerate(self._actors)
            ]
        )
        found: dict[int, Floats] = {}
        for share, arrays in zip(indices, results[:: self._trainer_ranks], strict=True):
            found.update(zip(share, arrays, strict=True))
        return [found[index] for index in range(len(samples))]

    def _dealt(self, samples: Sequence[Sample]) -> tuple[list[list[int]], list[Samples]]:
        """Deal samples out to the data-parallel workers: the indices that each gets, and its samples."""
        indices = split_evenly(samples, self.size // self._trainer_ranks)
        return indices, [Samples(samples[index] for index in share) for share in indices]

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await self._await(lambda: [getattr(actor, method).remote(*arguments) for actor in self._actors])

    async def _first(self, method: str, *arguments: Any) -> Any:
        """Call the first worker, which needs no other for this. So it does not matter which other machines are lost."""
        first = getattr(self._actors[0], method)
        return (await self._await(lambda: [first.remote(*arguments)], self._nodes.first_machine))[0]

    async def _await(self, make: Callable[[], Sequence[Any]], machines: frozenset[str] | None = None) -> list[Any]:
        """Make calls and wait for all. Whatever Ray raises is explained.

        `make`: makes the calls. It can fail too: Ray puts large arguments into its store at once, or on a disk.
        """
        from ray.exceptions import RayError

        try:
            return await self._results(make(), machines)
        except RayError as error:
            raise await self._failures.explain(error) from error

    async def _results(self, calls: Sequence[Any], machines: frozenset[str] | None) -> list[Any]:
        """Wait for all calls. The first failure ends the wait, since its peers may hang in a collective operation.

        So does the loss of one of these machines, by default of any, in case no call fails for it.
        """
        results: asyncio.Future[Any] = asyncio.gather(*calls)
        loss: asyncio.Future[Exception] = asyncio.create_task(self._nodes.loss(machines))
        results.add_done_callback(
            lambda all_: all_.cancelled() or all_.exception()
        )  # asyncio warns if an exception is never retrieved
        try:
            await asyncio.wait((results, loss), return_when=asyncio.FIRST_COMPLETED)
            if not results.done():
                raise await loss
            return list(results.result())
        finally:
            results.cancel()
            loss.cancel()
