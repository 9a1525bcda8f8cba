"""An engine in a pod, as the driver sees it: what the ends of its actor and of its machine mean."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, NodeDiedError

from lorarl_trainer.errors import WorkerError
from lorarl_trainer.launch import engine_pods
from lorarl_trainer.launch.engine_places import PlaceLostError
from lorarl_trainer.launch.engine_pods import InPod
from unit.trainer.planning.jobs import cpu_job


async def dies(*_: object) -> None:
    raise ActorDiedError()


async def hangs(*_: object) -> None:
    await asyncio.Event().wait()


def in_pod(monkeypatch: pytest.MonkeyPatch, method: Any, *, machine_dies: bool = False) -> tuple[InPod, list[object]]:
    """A place whose actor runs in pod a, with what each of its methods does, and the actors that Ray has killed."""

    async def loss_of(machines: frozenset[str]) -> Exception:
        assert machines == {"machine"}
        if not machine_dies:
            await asyncio.Event().wait()
        await asyncio.sleep(0.05)  # Ray knows of the actor's end first
        return NodeDiedError("gone")

    place, killed = InPod(cpu_job("rollout.separateEngines.count=1"), 0, "key"), list[object]()
    monkeypatch.setattr(engine_pods, "loss_of", loss_of)
    monkeypatch.setattr(engine_pods, "NODE_LOSS_SECONDS", 0.3)
    monkeypatch.setattr(engine_pods, "_END_SECONDS", 0.3)
    monkeypatch.setattr(ray, "kill", killed.append)
    remote = SimpleNamespace(remote=method)
    place._actor = SimpleNamespace(ended=remote, end=remote)
    place._pod, place._machine, place._runs = "a", "machine", True
    return place, killed


def test_the_end_of_its_process_is_the_engines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = in_pod(monkeypatch, dies)
    with pytest.raises(
        WorkerError, match=r"has ended with its process in the pod, which is still there \(ActorDiedErr"
    ):
        asyncio.run(place.ended())
    assert place.is_found


@pytest.mark.parametrize("method", [dies, hangs])
def test_the_end_of_its_machine_is_a_loss(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place, _ = in_pod(monkeypatch, method, machine_dies=True)
    with pytest.raises(PlaceLostError):
        asyncio.run(place.ended())
    assert not place.is_found


@pytest.mark.parametrize("method", [dies, hangs])
def test_its_actor_is_killed_whatever_becomes_of_its_end(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place, killed = in_pod(monkeypatch, method)
    actor = place._actor

    async def cut_short() -> None:
        ending = asyncio.create_task(place.end())
        await asyncio.sleep(0.01)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    asyncio.run(cut_short())
    assert killed == [actor]
