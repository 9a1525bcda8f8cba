"""What is behind a worker's failure, and how long Ray may take to say it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ray.exceptions import NodeDiedError, RayTaskError

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
    """A worker that is alive and idle; Ray has no answer from one that is silent, as it once had none for minutes."""

    def __init__(self, silent: bool = False) -> None:
        self._silent = silent

    @property
    def drain_asked(self) -> Actor:
        return self

    uploads = drain_asked

    def remote(self) -> Any:
        return never() if self._silent else asyncio.sleep(0, result=())


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


def group_of(*actors: Actor) -> WorkerGroup:
    """Workers on two machines, of which the second is lost."""
    machines, group = Machines(lost=True), object.__new__(WorkerGroup)
    group._nodes, group._actors = machines, list(actors)  # type: ignore[assignment]
    group._failures = failures(machines, *actors)
    return group
