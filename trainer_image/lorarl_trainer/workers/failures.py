"""What Ray's failures mean: which worker ended, why, and where its output is."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import (
    LorarlError,
    NodeLostError,
    OutOfMemoryError,
    WorkerError,
    in_one_line,
    last_exception,
    without_colours,
)
from lorarl_trainer.pods.drain import in_a_pod
from lorarl_trainer.pods.memory import kills_for_memory
from lorarl_trainer.storage.local import free_bytes
from lorarl_trainer.workers.nodes import Nodes

NODE_LOSS_SECONDS = 40.0
"""How long Ray may take to notice a lost machine: its health checks need 14 to 25 s.

Calls to that machine fail at once, and so do the collective operations of its peers.
"""
PEER_END_SECONDS = 120.0
"""The same where a worker itself says that another has ended. Ray takes longer on a busy machine, and does tell."""
_PEER_ENDED = re.compile("closed by peer|reset by peer|remote process exited")
"""Words of gloo and NCCL."""
_PAUSE_SECONDS = 0.2
ASK_SECONDS = 20.0
"""How long a worker's pod may take to say whether its memory has run out: it starts a process to find out."""

_LOG_TAIL_LINES = 20
_LONGEST_LINE = 300
_NODE_LOST = "its node has died"
"""Ray's words for an actor whose machine, or pod, is gone."""
_LOW_ON_MEMORY = "low on memory"
"""Ray's words for a process that it ended itself, before the kernel did."""
_SPILLED, _LEFT_BY_RAY = "/tmp/ray", "5%"
"""Where Ray puts objects that its memory has no room for, and how much of that disk it leaves free."""
_ENDED = "it was killed, as by the kernel when memory runs out, or it crashed"
_DRIVER_LOGS = {
    "SidecarMode": "the log of pod {pod}, container ray-job-submitter",
    "K8sJobMode": "the log of the submitter's pod",
    "HTTPMode": "/tmp/ray/session_latest/logs/job-driver-*.log of pod {pod}",
}
"""Where KubeRay keeps the driver's output, which includes the workers', by spec.cluster.submissionMode."""


def driver_log(spec: LoRARLJobSpec) -> str:
    """Return where the output of this process, the driver, is in a cluster."""
    return _DRIVER_LOGS[spec.cluster.submission_mode].format(pod=socket.gethostname())


class Failures:
    """Explains failures of one group of workers in a user's words."""

    def __init__(self, spec: LoRARLJobSpec, nodes: Nodes, actors: Sequence[Any], logs: Sequence[Path | None]) -> None:
        """`logs` has each worker's own file; None where Ray brings the workers' output to the driver."""
        self._spec, self._nodes, self._actors, self._logs = spec, nodes, actors, logs

    async def explain(self, error: Exception) -> LorarlError:
        """Find out what is behind a failure that Ray raised, and return the error to raise instead."""
        if _is_full(error):
            return WorkerError(_disk_is_full())
        explained = self._in_our_words(await self._cause(error))
        if type(explained) is WorkerError and in_a_pod() and await self._out_of_memory():
            return self._memory_ran_out()
        return explained

    async def _cause(self, error: Exception) -> Exception:
        """Return the end of a worker if that explains the failure; otherwise the failure itself."""
        if _is_clear(error):
            return error
        answers = [asyncio.create_task(_first_end(self._actors)), asyncio.create_task(self._nodes.loss())]
        try:
            # Workers that do not answer in time are busy, or Ray cannot say what became of them.
            done, _ = await asyncio.wait(answers, timeout=patience_with(error), return_when=asyncio.FIRST_COMPLETED)
            return next((end for answer in done if (end := answer.result())), error)
        finally:
            for task in answers:
                task.cancel()

    async def _out_of_memory(self) -> bool:
        """Return whether the kernel killed a process in a worker's pod for its memory. A lost pod cannot say."""
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(ASK_SECONDS):
                for kills in self._nodes.call(kills_for_memory):
                    if await kills:
                        return True
        except (RayError, TimeoutError):
            pass
        return False

    def _in_our_words(self, error: Any) -> LorarlError:
        from ray.exceptions import (
            ActorUnavailableError,
            LocalRayletDiedError,
            NodeDiedError,
            ObjectLostError,
            RayActorError,
            RayTaskError,
            WorkerCrashedError,
        )

        if isinstance(error, RayTaskError) and isinstance(error.cause, LorarlError):
            return error.cause
        is_actor_error = isinstance(error, RayActorError)
        if isinstance(error, RayTaskError) or (is_actor_error and error.actor_init_failed):
            return WorkerError(self._with_log_tail(f"a worker failed: {last_exception(str(error))}", str(error)))
        lost = isinstance(error, NodeDiedError | ActorUnavailableError | ObjectLostError) or (
            is_actor_error and error.preempted
        )
        if lost or _NODE_LOST in str(error):
            return NodeLostError(self._with_log_tail("a worker's machine or pod is gone"))
        if isinstance(error, LocalRayletDiedError):
            return NodeLostError(self._with_log_tail(f"Ray's own process on a worker's machine ended: {_ENDED}"))
        if _LOW_ON_MEMORY in str(error):
            line = next(line for line in str(error).splitlines() if _LOW_ON_MEMORY in line)
            return self._memory_ran_out(f". Ray: {line.strip()[:_LONGEST_LINE]}")
        if is_actor_error or isinstance(error, WorkerCrashedError):
            return WorkerError(self._with_log_tail(f"a worker process ended: {_ENDED}"))
        return WorkerError(self._with_log_tail(f"Ray failed: {in_one_line(error)}", str(error)))

    def _memory_ran_out(self, words: str = "") -> OutOfMemoryError:
        """Say which memory ran out and what to do; `words` are Ray's own, if it noticed first."""
        limit = self._spec.cluster.memory_per_node if in_a_pod() else None
        used = (
            f"its pod used all of its memory limit, spec.cluster.memoryPerNode {limit}"
            if limit
            else "its machine's memory was used up"
        )
        hint = f"{'Raise spec.cluster.memoryPerNode, or lower' if limit else 'Lower'} spec.trainer.tokensPerMicroBatch"
        # Without the end of the log: what the worker printed last has nothing to do with it.
        return OutOfMemoryError(f"a worker process was killed because {used}. {hint}{words}")

    def _with_log_tail(self, sentence: str, traceback: str = "") -> str:
        """Add where the workers' output is. A traceback goes there too: the worker did not print it itself."""
        traceback = without_colours(traceback)
        logs = [log for log in self._logs if log is not None and log.exists()]
        if not logs:
            if traceback:
                print(traceback, file=sys.stderr, flush=True)
            return sentence if any(self._logs) else f"{sentence}; its output is in {driver_log(self._spec)}"
        newest = max(logs, key=lambda log: log.stat().st_mtime)
        sentence = f"{sentence}."
        if traceback:
            with newest.open("a") as file:
                print(traceback, file=file)
            return f"{sentence} The worker's output is in {newest}."
        lines = without_colours(newest.read_text(errors="replace")).splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"{sentence} The end of {newest}:", *(f"  | {line[:_LONGEST_LINE]}" for line in lines)])


def patience_with(error: Exception) -> float:
    """Return how many seconds Ray gets to say that a worker has ended, which would explain a failure."""
    return PEER_END_SECONDS if _PEER_ENDED.search(str(error)) else NODE_LOSS_SECONDS


def _is_full(error: Exception) -> bool:
    """Return whether Ray had no room for an object, neither in memory nor on a disk."""
    from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayTaskError

    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, OutOfDiskError | ObjectStoreFullError)


def _disk_is_full() -> str:
    here, pods, free = socket.gethostname(), in_a_pod(), f"{free_bytes(Path(_SPILLED)) / 1e9:.1f} GB"
    or_there = " or on a worker" if pods else ""
    raise_it = ", or raise spec.cluster.head.disk and spec.cluster.diskPerNode" if pods else ""
    return (
        "Ray has no room for what driver and workers send each other: its memory is full, and so is the disk of "
        f"{_SPILLED} on {here}{or_there}. {free} are free on {here}; Ray leaves {_LEFT_BY_RAY} of a disk unused. Free "
        f"space there{raise_it}, then start the job again."
    )


def _is_clear(error: Exception) -> bool:
    """Return whether an error says what happened, so that nothing else is behind it."""
    from ray.exceptions import (
        ActorUnavailableError,
        LocalRayletDiedError,
        NodeDiedError,
        RayActorError,
        RayTaskError,
        WorkerCrashedError,
    )
    from ray.exceptions import OutOfMemoryError as EndedByRayError

    if isinstance(error, RayTaskError):
        return isinstance(error.cause, LorarlError)
    ends = RayActorError | NodeDiedError | LocalRayletDiedError | WorkerCrashedError | EndedByRayError
    return isinstance(error, ends) and not isinstance(error, ActorUnavailableError)


async def _first_end(actors: Sequence[Any]) -> Exception | None:
    """Return how the first of the workers ended, as `_end_of`; None if all are alive and idle."""
    questions = [asyncio.create_task(_end_of(actor)) for actor in actors]
    try:
        for question in asyncio.as_completed(questions):
            if (end := await question) is not None:
                return end
        return None
    finally:
        for task in questions:
            task.cancel()


async def _end_of(actor: Any) -> Exception | None:
    """Return how a worker ended, once Ray knows; None if it is alive and idle."""
    from ray.exceptions import ActorUnavailableError, RayActorError, RayError
    from ray.exceptions import OutOfMemoryError as EndedByRayError

    while True:
        try:
            await actor.drain_asked.remote()
        except ActorUnavailableError:
            await asyncio.sleep(_PAUSE_SECONDS)  # Ray needs time for this answer
            continue
        except (RayActorError, EndedByRayError) as end:
            return end
        except RayError:  # Ray cannot say
            return None
        return None
