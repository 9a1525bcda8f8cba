"""What a run says and does when it is asked to end, at each of its stages."""

from __future__ import annotations

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from lorarl_trainer import loop
from lorarl_trainer.launch.signals import Interruption
from lorarl_trainer.progress import Progress, Warned

BEFORE = ["check_engine", "workers.sync", "evaluate_if_due 0"]


class Stages:
    """The loop with parts that make nothing, and say what a run that is asked to end there would finish."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, total_steps: int = 2) -> None:
        self.seen: dict[str, str | None] = {}
        clock = SimpleNamespace(phase=Mock(), finish=lambda event: event)
        clock.phase.return_value = Mock(__enter__=Mock(), __exit__=Mock(return_value=None))
        checkpoints = Mock(report_published=AsyncMock(), results={}, step=0)
        self.session = Mock(
            **dict.fromkeys(["apply_steering", "report_startup"], AsyncMock()),
            workers=Mock(sync=self.part("workers.sync")),
            publish=self.part("publish"),
            limits=None,
            total_steps=total_steps,
            checkpoints=checkpoints,
            finishes=None,
        )
        self.session.must_end.return_value = False
        self.session.owes_checkpoint.return_value = False
        monkeypatch.setattr(loop, "check_engine", self.part("check_engine"))
        monkeypatch.setattr(loop, "make_step", self.part("make_step", loop.StepDone))
        monkeypatch.setattr(loop, "evaluate_if_due", self.part("evaluate_if_due"))
        monkeypatch.setattr(loop, "evaluations_due", lambda *_: ["held-out"])
        monkeypatch.setattr(loop, "StepClock", lambda: clock)
        monkeypatch.setattr(loop, "replace", lambda event, **_: event)

    def part(self, name: str, result: Any = None) -> Any:
        async def part(*arguments: Any, **_: Any) -> Any:
            step = f" {arguments[1]}" if len(arguments) > 1 and isinstance(arguments[1], int) else ""
            self.seen[name + step] = self.session.finishes
            return SimpleNamespace(metrics={}) if result else Mock()

        return part


def test_a_run_is_said_to_finish_what_it_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch)
    asyncio.run(loop.train(stages.session, 0))
    assert {name: stages.seen[name] for name in BEFORE} == dict.fromkeys(BEFORE)
    of_steps = ("make_step 1", "evaluate_if_due 1", "make_step 2", "evaluate_if_due 2")
    assert {stages.seen[name] for name in of_steps} == {"finishing this step, then publishing a checkpoint"}
    assert stages.seen["publish"] == "all steps are made; finishing the upload of the checkpoints"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("finishes", [None, "finishing this step, then publishing a checkpoint"])
def test_a_signal_ends_at_once_what_has_nothing_to_finish(number: signal.Signals, finishes: str | None) -> None:
    said: list[object] = []

    async def run() -> bool:
        progress = Mock(spec=Progress, emit=said.append)
        with Interruption(progress) as interruption:
            interruption.finishes = lambda: finishes
            os.kill(os.getpid(), number)
            try:
                await asyncio.wait_for(interruption.asked.wait(), 60)
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                return True
        return False

    assert asyncio.run(run()) == (finishes is None)
    more = " Ctrl-C again stops at once." if number == signal.SIGINT else ""
    assert said == ([Warned(f"{number.name}: {finishes}.{more}")] if finishes else [])
