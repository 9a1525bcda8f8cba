"""New workers in the place of the present ones: what is reported, and what a further loss meanwhile counts as."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from lorarl_trainer.errors import NodeLostError
from lorarl_trainer.launch.run import _with_new_workers
from lorarl_trainer.progress import Event, MoreWorkers, WorkersLost


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
