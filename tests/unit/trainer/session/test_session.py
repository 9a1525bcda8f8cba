"""What a session decides of evaluations, and of the weight of a KL penalty."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.checkpoint import Published
from lorarl_trainer.protocols.steering import Steering
from lorarl_trainer.protocols.workers import DriverState, Resumed
from lorarl_trainer.session import Session, starting_kl_coefficient
from lorarl_trainer.session.checkpoints import RunCheckpoints
from unit.contract.manifests import manifest
from unit.trainer.session.test_checkpoints import published

PPO_THAT_KEEPS = {
    "spec.algorithm": {"type": "ppo", "klCoefficient": 0.1, "kl": {"target": 0.05}, "ppo": {"criticWarmupSteps": 3}}
}


def session(changes: dict[str, Any], **more: Any) -> Session:
    """A session that trains nothing."""
    spec = load_job(json.dumps(manifest(changes))).spec
    parts: dict[str, Any] = dict.fromkeys(("workers", "rollouts", "checkpoints", "progress", "clock"))
    algorithm = get_algorithm(spec.algorithm, 8)
    return Session(spec=spec, algorithm=algorithm, stop=asyncio.Event(), total_steps=3, **parts, **more)


def test_the_weight_of_the_kl_penalty_waits_for_the_policy() -> None:
    made = session(PPO_THAT_KEEPS)
    made.kl_coefficient = starting_kl_coefficient(made.spec, Resumed(0, DriverState(), 0, None, ()))
    used = [made.adapt_kl(step, {"kl": 0.0})["kl_coefficient"] for step in range(1, 7)]
    assert used[:4] == [0.1] * 4, "the critic learned alone, then the policy's first step has the weight that was asked"
    assert used[4:] == pytest.approx([0.098, 0.09604])


def test_an_unknown_divergence_leaves_the_weight_as_it_is() -> None:
    made = session(PPO_THAT_KEEPS, kl_coefficient=0.1)
    assert made.adapt_kl(4, {"loss": 1.0}) == {"kl_coefficient": 0.1} and made.kl_coefficient == 0.1


def test_a_checkpoint_is_owed_by_the_age_of_the_newest_too() -> None:
    now = [100.0]
    made = session({"spec.checkpoint.every": 100, "spec.checkpoint.everySeconds": 60})
    made.total_steps, nothing = 1000, cast("Any", Nothing())
    made.checkpoints = RunCheckpoints(made.spec, nothing, nothing, clock=lambda: now[0])
    owed = []
    for step, seconds in enumerate((30, 29, 1, 59, 2), 1):
        now[0] += seconds
        owed.append(made.owes_checkpoint(step))
        if owed[-1]:
            asyncio.run(made.checkpoints.publish(step, step + 1, DriverState()))
    assert owed == [False, False, True, False, True]
    assert not session({"spec.checkpoint.every": 100}).spec.checkpoint.every_seconds


def test_a_checkpoint_for_a_drain_is_reported_before_the_next_step() -> None:
    events: list[Any] = []

    class Slow(Nothing):
        """Workers whose upload needs a while."""

        looks = 0

        async def uploads(self) -> list[Published]:
            self.looks += 1
            return [published(1)] if self.looks == 3 else []

    async def asked(total_steps: int, stopping: bool) -> Steering:
        return Steering(total_steps, asked=not events)

    made = session({"spec.checkpoint.every": 100}, steer=asked)
    made.progress, made.rollouts = cast("Any", Told(events)), cast("Any", Data())
    made.checkpoints = RunCheckpoints(made.spec, cast("Any", Slow()), made.progress)

    async def steps() -> list[bool]:
        owed = []
        for step in (1, 2):
            await made.apply_steering()
            owed.append(made.owes_checkpoint(step))
            if owed[-1]:
                await made.publish(step)
        return owed

    assert asyncio.run(steps()) == [True, False]
    assert [event.step for event in events] == [1]


@pytest.mark.parametrize(("asked", "grows"), [(False, True), (True, False)])
def test_more_workers_start_after_a_checkpoint_unless_a_node_goes(asked: bool, grows: bool) -> None:
    made = session({}, grows=True, asked=asked)
    made.rollouts, made.checkpoints = cast("Any", Data()), cast("Any", Stores())
    asyncio.run(made.publish(1))
    assert made.growing is grows and not made.asked
    asyncio.run(made.publish(made.total_steps))
    assert not made.growing, "no step is left"


class Stores:
    """Checkpoints that are published at once."""

    async def publish(self, *checkpoint: object) -> None: ...

    async def await_published(self) -> None: ...


def test_steps_that_are_added_are_generated_ahead_too() -> None:
    async def more(total_steps: int, stopping: bool) -> Steering:
        return Steering(total_steps + 5)

    made = session({}, steer=more)
    before, made.ahead = made.total_steps, cast("Any", SimpleNamespace(last=made.total_steps))
    asyncio.run(made.apply_steering())
    assert made.ahead is not None and made.ahead.last == made.total_steps == before + 5


class Told:
    """Progress that keeps its events."""

    def __init__(self, events: list[Any]) -> None:
        self.emit = events.append


class Data:
    """Rollouts that are not read."""

    position = 0
    unfinished = ()


class Nothing:
    """Workers that publish at once."""

    async def publish(self, *checkpoint: object) -> None: ...


@pytest.mark.parametrize(
    ("evaluated", "done", "owed"),
    [(True, 2, False), (False, 2, True), (None, 0, True), (None, 1, False), (None, 2, True), (None, 3, True)],
)
def test_an_evaluation_that_chooses_the_best_is_owed_if_unrecorded(
    evaluated: bool | None, done: int, owed: bool
) -> None:
    chosen = {"spec.data.eval": {"uri": "file:e.jsonl", "every": 2}, "spec.checkpoint.keepBest": {}}
    made = session(chosen, evaluated=evaluated)
    assert made.owes_evaluation(done) is owed
