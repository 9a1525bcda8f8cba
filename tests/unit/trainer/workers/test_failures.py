"""What is behind a worker's failure, and how long Ray may take to say it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from ray.exceptions import (
    ActorPlacementGroupRemoved,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectStoreFullError,
    OutOfDiskError,
    RaySystemError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)

from lorarl_api.load import load_job
from lorarl_trainer.errors import LorarlError, NodeLostError, WorkerError
from lorarl_trainer.workers.failures import NODE_LOSS_SECONDS, PEER_END_SECONDS, Failures, patience_with
from lorarl_trainer.workers.group import WorkerGroup
from unit.contract.manifests import manifest

PEER_ENDED = "RuntimeError: Read error: Connection reset by peer"
SECONDS = 5.0


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:38288",
        PEER_ENDED,
        "DistBackendError: NCCL error: remote process exited or there was a network error",
    ],
)
def test_ray_gets_longer_where_a_worker_says_that_another_has_ended(words: str) -> None:
    assert patience_with(RuntimeError(words)) == PEER_END_SECONDS > NODE_LOSS_SECONDS
    assert patience_with(RuntimeError("CUDA error: an illegal memory access")) == NODE_LOSS_SECONDS


class Machines:
    """Stands for the nodes. The second of them is lost, if `lost`."""

    first_machine = frozenset(["first"])

    def __init__(self, lost: bool) -> None:
        self._lost = lost

    async def loss(self, machines: frozenset[str] | None = None) -> Exception:
        lost = self._lost and (machines is None or "second" in machines)
        return NodeDiedError("a node has died") if lost else await never()


class Actor:
    """A worker that is alive and idle; Ray has no answer from one that is silent, as it once had none for minutes.

    A call of one that `fails` fails at once, and `uploads` may have an error as its answer.
    """

    def __init__(self, silent: bool = False, fails: Exception | None = None, answer: Exception | None = None) -> None:
        self._silent, self._fails, self._answer = silent, fails, answer

    @property
    def drain_asked(self) -> Call:
        return Call(self._silent, self._fails)

    @property
    def uploads(self) -> Call:
        return Call(self._silent, self._fails, self._answer)


@dataclass(frozen=True)
class Call:
    """A method of a worker, as Ray offers it."""

    silent: bool
    fails: Exception | None
    answer: Exception | None = None

    def remote(self) -> Any:
        if self.fails:
            raise self.fails
        return never() if self.silent else self._answered()

    async def _answered(self) -> tuple[()]:
        if self.answer:
            raise self.answer
        return ()


async def never() -> Any:
    await asyncio.Event().wait()


def failures(machines: Machines, *actors: Actor) -> Failures:
    return Failures(load_job(json.dumps(manifest())).spec, machines, actors, [None])  # type: ignore[arg-type]  # it asks the nodes nothing else


def explained(machines: Machines, *actors: Actor) -> LorarlError:
    error = RayTaskError("update", PEER_ENDED, RuntimeError(PEER_ENDED))
    return asyncio.run(asyncio.wait_for(failures(machines, *actors).explain(error), SECONDS))


def test_a_lost_machine_explains_a_failure_if_its_worker_never_answers() -> None:
    assert isinstance(explained(Machines(lost=True), Actor(), Actor(silent=True)), NodeLostError)


def test_where_all_workers_answer_the_failure_is_their_own() -> None:
    assert type(explained(Machines(lost=False), Actor(), Actor())) is WorkerError


def test_a_lost_machine_ends_the_wait_for_calls_that_never_fail() -> None:
    group = group_of(Actor(), Actor(silent=True))

    async def waits() -> None:
        with pytest.raises(NodeLostError):
            await asyncio.wait_for(group.drain_asked(), SECONDS)

    asyncio.run(waits())


def test_the_first_worker_saves_its_uploads_after_another_machine_is_lost() -> None:
    group = group_of(Actor(), Actor(silent=True))
    assert asyncio.run(asyncio.wait_for(group.uploads(), SECONDS)) == []


@pytest.mark.parametrize("full", [OutOfDiskError("spilled"), ObjectStoreFullError("full")])
def test_a_full_disk_is_named_though_the_call_itself_fails(full: Exception) -> None:
    """Ray puts a call's large arguments into its store before it returns."""
    with pytest.raises(WorkerError, match=r"so is the disk of /tmp/ray on .* GB are free on .*Free space there"):
        asyncio.run(group_of(Actor(fails=full)).drain_asked())


def test_a_full_disk_on_a_worker_s_machine_is_named_too() -> None:
    error = RayTaskError("generate", "OutOfDiskError", OutOfDiskError("spilled"))
    assert "the disk of /tmp/ray" in str(asyncio.run(failures(Machines(lost=False), Actor()).explain(error)))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (LocalRayletDiedError(), NodeLostError, "Ray's own process on a worker's machine ended"),
        (ActorPlacementGroupRemoved(), WorkerError, "Ray failed: ActorPlacementGroupRemoved: The placement group"),
        (TaskUnschedulableError("no such node"), WorkerError, "Ray failed: TaskUnschedulableError: .*no such node"),
        (RaySystemError("Broken pipe"), WorkerError, "Ray failed: RaySystemError: System error: Broken pipe"),
        (WorkerCrashedError(), WorkerError, "a worker process ended"),
    ],
)
def test_whatever_else_ray_raises_is_explained(error: Exception, kind: type[LorarlError], words: str) -> None:
    group = group_of(Actor(answer=error), lost=False)
    with pytest.raises(kind, match=words) as raised:
        asyncio.run(asyncio.wait_for(group.uploads(), SECONDS))
    assert type(raised.value) is kind and raised.value.__cause__ is error


def test_a_lost_machine_explains_an_error_of_ray_s_own() -> None:
    group = group_of(Actor(answer=RaySystemError("Broken pipe")), Actor(silent=True))
    with pytest.raises(NodeLostError):
        asyncio.run(asyncio.wait_for(group.uploads(), SECONDS))


def group_of(*actors: Actor, lost: bool = True) -> WorkerGroup:
    """Workers on two machines, of which the second is lost, if `lost`."""
    machines, group = Machines(lost), object.__new__(WorkerGroup)
    group._nodes, group._actors = machines, list(actors)  # type: ignore[assignment]
    group._failures = failures(machines, *actors)
    return group
