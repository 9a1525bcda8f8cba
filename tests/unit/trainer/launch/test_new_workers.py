"""New workers in the place of the present ones: what is reported, and what a further loss meanwhile counts as."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lorarl_trainer.errors import NodeLostError
from lorarl_trainer.launch import ray_cluster
from lorarl_trainer.launch.ray_cluster import RayCluster
from lorarl_trainer.launch.run import _with_new_workers
from lorarl_trainer.progress import Event, MoreWorkers, WorkersLost
from lorarl_trainer.timing import StartClock


@dataclass
class Run:
    """A run whose new workers start only after some have been lost while they start."""

    losses: int
    asked: list[bool] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    async def session_of_new_workers(self, before: object, *, lost: bool) -> str:
        self.asked.append(lost)
        if len(self.asked) <= self.losses:
            raise NodeLostError("a machine was lost")
        return "session"

    def emit(self, event: Event) -> None:
        self.events.append(event)


@pytest.mark.parametrize(("lost", "waits"), [(True, (300.0, 2)), (False, (0.0, None))])
def test_present_nodes_are_waited_for_only_as_far_as_some_are_lost(
    lost: bool, waits: tuple[float, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it grows, no worker trains, and the other nodes may not come for hours."""
    asked = []

    def reserve_some(spec: object, wait: float, abandoned: object, enough: int | None = None) -> None:
        asked.append((wait, enough))

    monkeypatch.setattr(ray_cluster, "reserve_some", reserve_some)
    monkeypatch.setattr(ray_cluster, "lost_machines", lambda: {"a"})
    cluster = RayCluster(cast("Any", None), None, StartClock("driver", "any"), wait_seconds=300.0)
    cluster._group = cast("Any", SimpleNamespace(kill=lambda: None, machines=frozenset({"a", "b"})))

    async def replace() -> None:
        with contextlib.suppress(AssertionError):  # there are no new workers
            await cluster.replace_workers(StartClock("driver", "any"), lost=lost)

    asyncio.run(replace())
    assert asked == [waits]


@pytest.mark.parametrize(("why", "lost"), [(WorkersLost("gone"), True), (MoreWorkers("room"), False)])
def test_a_loss_while_more_workers_start_is_none_of_those_that_trained(
    why: WorkersLost | MoreWorkers, lost: bool
) -> None:
    """The operator waits for lost workers to be replaced, and ends an attempt whose workers it finds all sound."""
    run = Run(losses=2)
    session = asyncio.run(_with_new_workers(cast("Any", run), cast("Any", run), cast("Any", None), why))
    assert session == cast("Any", "session")
    assert run.asked == [lost] * 3
    assert [type(event) for event in run.events] == [type(why)] * 3
    assert "a machine was lost" in str(run.events[-1])
