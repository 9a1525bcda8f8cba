"""The workers as Ray actors: one a device, in one placement group, addressed together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint import Published
from lorarl_trainer.devices import get_platform
from lorarl_trainer.errors import LorarlError, NodeLostError, OutOfMemoryError, WorkerError, last_of, without_colours
from lorarl_trainer.pods.drain import in_a_pod
from lorarl_trainer.pods.memory import kills_for_memory
from lorarl_trainer.samples.packing import split_evenly
from lorarl_trainer.samples.types import Completion, CompletionChunk, Sample, Samples, UpdateRequest, UpdateResult
from lorarl_trainer.storage.base_model import fetch_base_model
from lorarl_trainer.storage.secrets import Secrets
from lorarl_trainer.timing import Span
from lorarl_trainer.workers.worker import Built, Place, Resumed, Worker

UPLOAD_SECONDS = 900.0
"""How long the end of a run waits for its last checkpoint: longer than storage retries a write."""

LOSS_SECONDS = 40.0
"""How long Ray may take to see that a machine is gone: its health checks need 14 to 25 s. The calls to it fail at once, and so do the
collective operations of its peers."""

ASK_SECONDS = 20.0
"""How long a worker's pod may take to say whether its memory has run out: it starts a process for that."""

type TakePart = Callable[[Sequence[int], Sequence[Completion]], None]
"""Takes completions that have ended: the places of their prompts among all of them, and the completions."""

_LOOK_SECONDS = 0.2
_LOG_TAIL_LINES = 20
_LONGEST_LINE = 300
_NODE_LOST = "its node has died"
"""What Ray says of an actor whose machine, or pod, is no more."""
_LOW_ON_MEMORY = "low on memory"
"""... of a process that it ended itself, before the kernel does."""
_ENDED = "it was killed, as by the kernel when memory runs out, or it crashed"
_DRIVER_LOGS = {
    "SidecarMode": "the log of pod {pod}, container ray-job-submitter",
    "K8sJobMode": "the log of the submitter's pod",
    "HTTPMode": "/tmp/ray/session_latest/logs/job-driver-*.log of pod {pod}",
}
"""Where KubeRay has the output of the driver, to which Ray brings that of the workers, by spec.cluster.submissionMode."""


def reserve(spec: LoRARLJobSpec, abandoned: threading.Event | None = None) -> Any | None:
    """Reserve a device for each worker: Ray's placement group, once all are there, or None where `abandoned` was set before."""
    import ray

    bundle: dict[str, float] = {"CPU": 1, "GPU": 1} if spec.on_gpu else {"CPU": 1}
    # A node of a cluster has as many workers as GPUs; on CPU the workers of one tensor-parallel group stay together too.
    group = ray.util.placement_group([bundle] * spec.world_size, strategy="PACK")
    ready = group.ready()
    while not ray.wait([ready], timeout=_LOOK_SECONDS)[0]:
        if abandoned is not None and abandoned.is_set():
            ray.util.remove_placement_group(group)
            return None
    ray.get(ready)
    return group


class WorkerGroup:
    """All workers of a job. Ray is initialised before."""

    def __init__(self, spec: LoRARLJobSpec, log_dir: Path | None, devices: Any) -> None:
        """Start the worker processes.

        Args:
            spec: the job.
            devices: what `reserve` returned.
            log_dir: each worker's output goes to a file there; None leaves it to Ray, as in a pod.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._spec, self._log_dir = spec, log_dir
        self._trainer_tp, self._rollout_tp = spec.trainer.tensor_parallel_size, spec.rollout.tensor_parallel_size
        gpus = spec.cluster.gpus_per_node
        self.size = spec.world_size
        self._group = devices
        self._nodes = by_node(ray.util.placement_group_table(self._group)["bundles_to_node_id"])
        self._folders: list[Path] = []
        threads = max(1, len(os.sched_getaffinity(0)) // spec.workers_per_node)
        environment = get_platform(gpus).environment(threads)
        self._logs = [log_dir / f"worker-{rank}.log" if log_dir else None for rank in range(self.size)]
        address, port = _meeting_point(self._group) if self.size > 1 else (None, None)
        self._actors: list[Any] = []
        for rank, (local_rank, bundle_index) in enumerate(place for node in self._nodes for place in enumerate(node)):
            place = Place(rank, self.size, local_rank, address, port, threads)
            actor = ray.remote(Worker).options(
                num_cpus=1,
                num_gpus=1 if gpus else 0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self._group, placement_group_bundle_index=bundle_index
                ),
                runtime_env={"env_vars": environment},
            )
            self._actors.append(actor.remote(spec, place, self._logs[rank]))
            self._actors[-1].preload.remote()  # goes on while the caller prepares what `start` needs

    async def fetch_model(self, secrets: Secrets) -> str:
        """Fetch the base model to each machine, once for all its workers, while these import their engines; return its fingerprint.

        Raises:
            LorarlError: a machine cannot get the model, or has no room for it.
        """
        models = await self._await(self._on_each_node(fetch_base_model, self._spec, secrets))
        fingerprints = {model.fingerprint for model in models}
        if len(fingerprints) > 1:
            uri, hint = self._spec.model.uri, "Start the job again. (A commit as spec.model.revision never changes.)"
            raise LorarlError(
                f"spec.model.uri: {uri} changed while the machines fetched it, and not all have the same model. {hint}"
            )
        self._folders = [model.folder for model, node in zip(models, self._nodes, strict=True) for _ in node]
        return str(fingerprints.pop())

    async def open_checkpoints(
        self, job_name: str, job_uid: str | None, secrets: Secrets, identity: Mapping[str, Any], unpublished: Path
    ) -> None:
        """Say where the job's checkpoints are; the newest one is read while `start` loads the model.

        Raises:
            LorarlError: the store cannot be used.
        """
        await self._await([self._actors[0].open_checkpoints.remote(job_name, job_uid, secrets, identity, unpublished)])

    async def start(self, stop_token_ids: tuple[int, ...], first_adapter: bytes | None) -> Built:
        """Build model, adapter and engine in every worker. `fetch_model` comes before."""
        import ray

        adapter = (
            first_adapter if first_adapter is None else ray.put(first_adapter)
        )  # once, however many workers read it
        calls = [
            actor.start.remote(folder, stop_token_ids, adapter)
            for actor, folder in zip(self._actors, self._folders, strict=True)
        ]
        built: Built = (await self._await(calls))[0]
        return built

    async def resume(self) -> Resumed:
        """Take over the job's checkpoints and bring every worker to the newest whole one. `open_checkpoints` comes before."""
        first = self._actors[0]
        resumed: Resumed = (await self._await([first.claim_checkpoints.remote()]))[0]
        if resumed.step:
            # A reference: the state goes from worker to worker, not through this process. A worker alone has it.
            await self._all("restore", first.found_state.remote() if self.size > 1 else None)
        return resumed

    async def sync(self) -> tuple[int, float]:
        """Bring the adapter to every engine; return its version and the slowest worker's seconds."""
        results = await self._all("sync")
        return results[0][0], max(seconds for _, seconds in results)

    async def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None, take: TakePart
    ) -> dict[str, float]:
        """Generate a completion a prompt, spread over the engines, and hand each to `take` when it has ended.

        Neighbours stay together, so that an engine computes a group's prompt once.

        Returns:
            The slowest engine's seconds by phase.
        """
        replicas = self.size // self._rollout_tp
        bounds = [len(prompts) * r // replicas for r in range(replicas + 1)]
        streams = []
        for rank, actor in enumerate(self._actors):
            # All ranks of a tensor-parallel engine get the same prompts.
            share = slice(bounds[rank // self._rollout_tp], bounds[rank // self._rollout_tp + 1])
            stream = actor.generate.remote(prompts[share], seeds[share] if seeds is not None else None)
            streams.append(asyncio.create_task(_follow(stream, share.start, take)))
        try:
            results = await self._await(streams)
        finally:
            for task in streams:
                task.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        return {phase: max(seconds.get(phase, 0.0) for seconds in results) for every in results for phase in every}

    async def update(self, request: UpdateRequest) -> UpdateResult:
        """Make one optimizer update, the request's samples dealt out to the data-parallel workers."""
        shares = split_evenly(request.samples, self.size // self._trainer_tp)
        requests = [replace(request, samples=Samples(request.samples[i] for i in share)) for share in shares]
        calls = [actor.update.remote(requests[rank // self._trainer_tp]) for rank, actor in enumerate(self._actors)]
        result: UpdateResult = (await self._await(calls))[0]
        return result

    async def losses(self, samples: Sequence[Sample]) -> list[float]:
        """Return the sum of -log p over each sample's response tokens at temperature 1."""
        shares = split_evenly(samples, self.size // self._trainer_tp)
        calls = []
        for rank, actor in enumerate(self._actors):
            calls.append(
                actor.log_probabilities.remote(Samples(samples[i] for i in shares[rank // self._trainer_tp]), 1.0)
            )
        losses = [0.0] * len(samples)
        for share, logprobs in zip(shares, (await self._await(calls))[:: self._trainer_tp], strict=True):
            for index, values in zip(share, logprobs, strict=True):
                losses[index] = -float(values.sum())
        return losses

    async def start_parts(self) -> list[Span]:
        """Return the parts of the start of the worker that came last to its first update."""
        return max(await self._all("start_parts"), key=lambda parts: max((part.end for part in parts), default=0.0))

    async def publish(self, step: int, position: int) -> None:
        """Take a checkpoint and hand it to the first worker's uploader."""
        await self._all("publish", step, position)

    async def uploads(self) -> list[Published]:
        """Return the checkpoints published so far."""
        return list((await self._await([self._actors[0].uploads.remote()]))[0])

    async def drain_asked(self) -> bool:
        """Whether a worker's pod is about to be taken away."""
        return any(await self._all("drain_asked"))

    async def drain_uploads(self, seconds: float = UPLOAD_SECONDS) -> list[Published]:
        """Wait until every checkpoint is published. After `seconds` the newest that is not is kept on the worker's disk: an error."""
        return list((await self._await([self._actors[0].drain_uploads.remote(seconds)]))[0])

    def kill(self) -> None:
        """End the worker processes at once and give the devices back."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        ray.util.remove_placement_group(self._group)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        return await self._await([getattr(actor, method).remote(*arguments) for actor in self._actors])

    async def _await(self, calls: Sequence[Any]) -> list[Any]:
        """Wait for all; the first failure ends the wait, since its peers may hang in a collective operation."""
        from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError, WorkerCrashedError
        from ray.exceptions import OutOfMemoryError as EndedByRayError

        try:
            return list(await asyncio.gather(*calls))
        except (
            RayTaskError,
            RayActorError,
            NodeDiedError,
            ObjectLostError,
            WorkerCrashedError,
            EndedByRayError,
        ) as error:
            told = self._told(await self._cause(error))
            if type(told) is WorkerError and in_a_pod() and await self._out_of_memory():
                told = self._memory_ran_out()
            raise told from error

    async def _cause(self, error: Exception) -> Exception:
        """Return what is behind a failure: the end of a worker, where that explains it; otherwise the failure itself."""
        from ray.exceptions import ActorUnavailableError, ObjectLostError, RayTaskError

        of_a_worker = isinstance(error, RayTaskError) and not isinstance(error.cause, LorarlError)
        if not of_a_worker and not isinstance(error, ActorUnavailableError | ObjectLostError):
            return error
        questions = [asyncio.create_task(_end_of(actor)) for actor in self._actors]
        try:
            for question in asyncio.as_completed(questions, timeout=LOSS_SECONDS):
                if (end := await question) is not None:
                    return end
        except TimeoutError:
            pass  # those that do not answer are busy, or Ray cannot say what became of them
        finally:
            for task in questions:
                task.cancel()
        return error

    async def _out_of_memory(self) -> bool:
        """Whether the kernel has killed a process in a worker's pod for its memory. A pod that is gone does not say."""
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(ASK_SECONDS):
                for kills in self._on_each_node(kills_for_memory):
                    if await kills:
                        return True
        except (RayError, TimeoutError):
            pass
        return False

    def _on_each_node(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function once on each machine, in a process of its own: a worker may be busy, or be no more."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        calls = []
        for node in self._nodes:
            there = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=node[0])
            calls.append(
                ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*arguments)
            )
        return calls

    def _memory_ran_out(self, words: str = "") -> OutOfMemoryError:
        """Say how much it was and what to do; `words` are Ray's own, where it saw it first."""
        limit = self._spec.cluster.memory_per_node if in_a_pod() else None
        used = (
            f"its pod had used the memory of its limit, spec.cluster.memoryPerNode {limit}"
            if limit
            else "its machine's memory was used up"
        )
        hint = f"{'Raise spec.cluster.memoryPerNode, or lower' if limit else 'Lower'} spec.trainer.tokensPerMicroBatch"
        return OutOfMemoryError(self._and_where_to_look(f"a worker process was killed, since {used}. {hint}{words}"))

    def _told(self, error: Any) -> LorarlError:
        """Say a failure of Ray's in our words."""
        from ray.exceptions import ActorUnavailableError, NodeDiedError, ObjectLostError, RayActorError, RayTaskError

        if isinstance(error, RayTaskError) and isinstance(error.cause, LorarlError):
            return error.cause
        of_an_actor = isinstance(error, RayActorError)
        if isinstance(error, RayTaskError) or (of_an_actor and error.actor_init_failed):
            return WorkerError(self._and_where_to_look(f"a worker failed: {last_of(str(error))}", str(error)))
        lost = isinstance(error, NodeDiedError | ActorUnavailableError | ObjectLostError) or (
            of_an_actor and error.preempted
        )
        if lost or _NODE_LOST in str(error):
            return NodeLostError(self._and_where_to_look("a worker's machine or pod is gone"))
        if _LOW_ON_MEMORY in str(error):
            line = next(line for line in str(error).splitlines() if _LOW_ON_MEMORY in line)
            return self._memory_ran_out(f". Ray: {line.strip()[:_LONGEST_LINE]}")
        return WorkerError(self._and_where_to_look(f"a worker process ended: {_ENDED}"))

    def _and_where_to_look(self, sentence: str, traceback: str = "") -> str:
        """Add to a sentence where the workers' output is. A traceback goes there: the worker did not print it itself."""
        traceback = without_colours(traceback)
        logs = [log for log in self._logs if log is not None and log.exists()]
        if not logs:
            if traceback:
                print(traceback, file=sys.stderr, flush=True)
            driver_log = _DRIVER_LOGS[self._spec.cluster.submission_mode].format(pod=socket.gethostname())
            return sentence if self._log_dir else f"{sentence}; its output is in {driver_log}"
        newest = max(logs, key=lambda log: log.stat().st_mtime)
        sentence = f"{sentence}; the same command goes on from the newest checkpoint."
        if traceback:
            with newest.open("a") as file:
                print(traceback, file=file)
            return f"{sentence} The worker's output is in {newest}."
        lines = without_colours(newest.read_text(errors="replace")).splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"{sentence} The end of {newest}:", *(f"  | {line[:_LONGEST_LINE]}" for line in lines)])


async def _follow(stream: Any, first: int, take: TakePart) -> Mapping[str, float]:
    """Take a worker's completions as they come, with their places from `first` on; return its seconds by phase."""
    seconds: Mapping[str, float] = {}
    async for reference in stream:
        part: CompletionChunk = await reference
        seconds = part.seconds
        if part.completions:
            take([first + place for place in part.places], part.completions)
    return seconds


def by_node(placement: Mapping[int, str]) -> list[list[int]]:
    """Return the bundles of each node, from the node of every bundle: the first node has bundle 0."""
    nodes: dict[str, list[int]] = {}
    for bundle in sorted(placement):
        nodes.setdefault(placement[bundle], []).append(bundle)
    return list(nodes.values())


async def _end_of(actor: Any) -> Exception | None:
    """Return how a worker ended, once Ray knows; None where it lives and has nothing to do."""
    from ray.exceptions import ActorUnavailableError, RayActorError
    from ray.exceptions import OutOfMemoryError as EndedByRayError

    while True:
        try:
            await actor.drain_asked.remote()
        except ActorUnavailableError:
            continue  # Ray takes its time for this answer
        except (RayActorError, EndedByRayError) as end:
            return end
        return None


def _meeting_point(group: Any) -> tuple[str, int]:
    """Return the address of the first worker's machine and a port that is free there."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    @ray.remote(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0))
    def find() -> tuple[str, int]:
        # Nobody gets it by chance before a worker has imported torch and listens there: it is above the ports of Ray's workers (10002 to
        # 19999), and below those that connections and servers without a wish of their own get (from 32768).
        for port in random.SystemRandom().sample(range(20_000, 30_000), 1000):
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("", port))
                return ray.util.get_node_ip_address(), port
        raise OSError("no port of 20000 to 29999 is free")

    address: tuple[str, int] = ray.get(find.remote())
    return address
