"""What a run reports about checkpoints that have been published."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint import Best, Published
from lorarl_trainer.errors import StorageError, WorkerError
from lorarl_trainer.progress import BestFound, CheckpointDone, Event, Progress, Warned
from lorarl_trainer.session import RunCheckpoints
from unit.contract.manifests import EVAL, manifest
from unit.trainer.progress.runs import Recorder


def published(step: int, *warnings: str) -> Published:
    return Published(step, f"s3://a/{step}", f"s3://a/{step}/lora_adapter", "sum", step, 1, "now", warnings)


class Uploads:
    """Workers that do nothing but end their uploads."""

    def __init__(self, drained: list[Published] | Exception | None, earlier: Sequence[Published] = ()) -> None:
        self._drained, self._earlier = drained, earlier

    async def published(self) -> list[Published]:
        return list(self._earlier)

    async def best(self) -> Best:
        return Best("iter_0000003", 3, "eval_score", 0.5, adapter_sha256="a" * 64)

    async def finish(self) -> None:
        await self.drain_uploads(0.0)

    async def drain_uploads(self, seconds: float = 0.0) -> list[Published]:
        if isinstance(self._drained, Exception):
            raise self._drained
        return self._drained or []


def checkpoints(
    drained: list[Published] | Exception | None = None, earlier: Sequence[Published] = ()
) -> tuple[RunCheckpoints, list[Event]]:
    """The checkpoints of a run that trains nothing, and the events that are emitted of them."""
    recorder = Recorder()
    workers: Any = Uploads(drained, earlier)
    return RunCheckpoints(load_job(json.dumps(manifest({}))).spec, workers, Progress([recorder], [])), recorder.events


def test_each_checkpoint_is_told_once_and_so_is_what_the_store_refused() -> None:
    made, told = checkpoints()
    made.report([published(1, "it may not delete")])
    made.report([published(1, "it may not delete"), published(2, "it may not delete")])
    assert [event.text for event in told if isinstance(event, Warned)] == ["it may not delete"]
    assert [event.step for event in told if isinstance(event, CheckpointDone)] == [1, 2]


def test_the_best_one_is_reported_once_with_the_digest_of_its_file() -> None:
    recorder, workers = Recorder(), Uploads([published(3)])
    spec = load_job(json.dumps(manifest(EVAL | {"spec.checkpoint.keepBest": {}}))).spec
    made = RunCheckpoints(spec, cast("Any", workers), Progress([recorder], []))
    asyncio.run(made.drain())
    asyncio.run(made.drain())
    (best,) = [event for event in recorder.events if isinstance(event, BestFound)]
    assert (best.step, best.uri, best.sha256) == (3, "s3://a/iter_0000003/lora_adapter", "a" * 64)


def test_an_end_that_is_not_recorded_fails_no_training() -> None:
    made, told = checkpoints(StorageError("the store is down"))
    asyncio.run(made.finish())
    assert [event.text for event in told] == ["the end of the training is not recorded in the store: the store is down"]


def test_after_a_failure_what_was_handed_over_is_published_and_told() -> None:
    made, told = checkpoints([published(3)])
    asyncio.run(made.rescue(ValueError("the reward")))
    assert [event.step for event in told] == [3]


@pytest.mark.parametrize(
    ("secondary", "warnings"),
    [(StorageError("kept in unpublished/"), 1), (StorageError("the same"), 0), (WorkerError("the worker is gone"), 0)],
)
def test_what_fails_then_is_told_only_where_it_is_news(secondary: Exception, warnings: int) -> None:
    made, told = checkpoints(secondary)
    asyncio.run(made.rescue(StorageError("the same")))
    assert len(told) == warnings


def test_what_was_published_before_the_store_failed_is_told() -> None:
    """As after an evaluation that could not be recorded: its step's adapter is in the store."""
    failure = StorageError("the results of the last evaluation were not recorded")
    made, told = checkpoints(failure, [published(3)])
    asyncio.run(made.rescue(failure))
    assert [event.step for event in told if isinstance(event, CheckpointDone)] == [3] and len(told) == 1
    assert made.adapter_uri == "s3://a/3/lora_adapter"
