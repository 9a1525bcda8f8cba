"""What a session reports about checkpoints that have been published."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.algorithms.registry import get_algorithm
from lorarl_trainer.checkpoint import Published
from lorarl_trainer.errors import StorageError, WorkerError
from lorarl_trainer.progress import CheckpointDone, Event, Progress, Warned
from lorarl_trainer.protocols.workers import DriverState, Resumed
from lorarl_trainer.session import Session, starting_kl_coefficient
from unit.contract.manifests import manifest
from unit.trainer.progress.runs import Recorder


def published(step: int, *warnings: str) -> Published:
    return Published(step, f"s3://a/{step}", f"s3://a/{step}/lora_adapter", "sum", step, 1, "now", warnings)


class Uploads:
    """Workers that do nothing but end their uploads."""

    def __init__(self, drained: list[Published] | Exception | None, earlier: Sequence[Published] = ()) -> None:
        self._drained, self._earlier = drained, earlier

    async def published(self) -> list[Published]:
        return list(self._earlier)

    async def finish(self) -> None:
        await self.drain_uploads(0.0)

    async def drain_uploads(self, seconds: float) -> list[Published]:
        if isinstance(self._drained, Exception):
            raise self._drained
        return self._drained or []


def session(
    drained: list[Published] | Exception | None = None, earlier: Sequence[Published] = ()
) -> tuple[Session, list[Event]]:
    """A session that trains nothing, and the events that it emits."""
    recorder = Recorder()
    parts: dict[str, Any] = dict.fromkeys(("spec", "algorithm", "rollouts", "stop", "clock"))
    workers: Any = Uploads(drained, earlier)
    return Session(workers=workers, progress=Progress([recorder], []), total_steps=3, **parts), recorder.events


def test_each_checkpoint_is_told_once_and_so_is_what_the_store_refused() -> None:
    made, told = session()
    made.report_checkpoints([published(1, "it may not delete")])
    made.report_checkpoints([published(1, "it may not delete"), published(2, "it may not delete")])
    assert [event.text for event in told if isinstance(event, Warned)] == ["it may not delete"]
    assert [event.step for event in told if isinstance(event, CheckpointDone)] == [1, 2]


def test_an_end_that_is_not_recorded_fails_no_training() -> None:
    made, told = session(StorageError("the store is down"))
    asyncio.run(made.finish())
    assert [event.text for event in told] == ["the end of the training is not recorded in the store: the store is down"]


def test_after_a_failure_what_was_handed_over_is_published_and_told() -> None:
    made, told = session([published(3)])
    asyncio.run(made.rescue_uploads(ValueError("the reward")))
    assert [event.step for event in told] == [3]


@pytest.mark.parametrize(
    ("secondary", "warnings"),
    [(StorageError("kept in unpublished/"), 1), (StorageError("the same"), 0), (WorkerError("the worker is gone"), 0)],
)
def test_what_fails_then_is_told_only_where_it_is_news(secondary: Exception, warnings: int) -> None:
    made, told = session(secondary)
    asyncio.run(made.rescue_uploads(StorageError("the same")))
    assert len(told) == warnings


def test_what_was_published_before_the_store_failed_is_told() -> None:
    """As after an evaluation that could not be recorded: its step's adapter is in the store."""
    failure = StorageError("the results of the last evaluation were not recorded")
    made, told = session(failure, [published(3)])
    asyncio.run(made.rescue_uploads(failure))
    assert [event.step for event in told if isinstance(event, CheckpointDone)] == [3] and len(told) == 1
    assert made.adapter_uri == "s3://a/3/lora_adapter"


PPO_THAT_KEEPS = {
    "spec.algorithm": {"type": "ppo", "klCoefficient": 0.1, "kl": {"target": 0.05}, "ppo": {"criticWarmupSteps": 3}}
}


def test_the_weight_of_the_kl_penalty_waits_for_the_policy() -> None:
    made, _ = session()
    made.spec = load_job(json.dumps(manifest(PPO_THAT_KEEPS))).spec
    made.algorithm = get_algorithm(made.spec.algorithm, 8)
    made.kl_coefficient = starting_kl_coefficient(made.spec, Resumed(0, DriverState(), 0, None, ()))
    used = [made.adapt_kl(step, {"kl": 0.0})["kl_coefficient"] for step in range(1, 7)]
    assert used[:4] == [0.1] * 4, "the critic learned alone, then the policy's first step has the weight that was asked"
    assert used[4:] == pytest.approx([0.098, 0.09604])


def test_an_unknown_divergence_leaves_the_weight_as_it_is() -> None:
    made, _ = session()
    made.spec = load_job(json.dumps(manifest(PPO_THAT_KEEPS))).spec
    made.algorithm, made.kl_coefficient = get_algorithm(made.spec.algorithm, 8), 0.1
    assert made.adapt_kl(4, {"loss": 1.0}) == {"kl_coefficient": 0.1} and made.kl_coefficient == 0.1


@pytest.mark.parametrize(
    ("evaluated", "done", "owed"),
    [(True, 2, False), (False, 2, True), (None, 0, True), (None, 1, False), (None, 2, True), (None, 3, True)],
)
def test_an_evaluation_that_chooses_the_best_is_owed_if_unrecorded(
    evaluated: bool | None, done: int, owed: bool
) -> None:
    made, _ = session()
    chosen = {"spec.data.eval": {"uri": "file:e.jsonl", "every": 2}, "spec.checkpoint.keepBest": {}}
    made.spec, made.stop = load_job(json.dumps(manifest(chosen))).spec, asyncio.Event()
    made.evaluated = evaluated
    assert made.owes_evaluation(done) is owed
