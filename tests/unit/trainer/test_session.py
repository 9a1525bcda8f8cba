"""What a session tells of checkpoints that have been published."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lorarl_trainer.checkpoint import Published
from lorarl_trainer.errors import StorageError, WorkerError
from lorarl_trainer.progress import CheckpointDone, Warned
from lorarl_trainer.session import Session


def published(step: int, *warnings: str) -> Published:
    return Published(step, f"s3://a/{step}", f"s3://a/{step}/lora_adapter", "sum", step, 1, "now", warnings)


def session(drained: list[Published] | Exception | None = None) -> tuple[Any, list[Any]]:
    """One that trains nothing, and the list of what it tells."""

    async def drain_uploads(seconds: float) -> list[Published]:
        if isinstance(drained, Exception):
            raise drained
        return drained or []

    told: list[Any] = []
    parts = dict.fromkeys(("algorithm", "scorer", "train_rows", "eval_rows", "order", "decode", "stop", "clock"))
    workers, progress = SimpleNamespace(drain_uploads=drain_uploads), SimpleNamespace(emit=told.append)
    spec = SimpleNamespace(trainer=SimpleNamespace(steps=3))
    return Session(spec=spec, workers=workers, progress=progress, **parts), told  # type: ignore[arg-type]


def test_each_checkpoint_is_told_once_and_so_is_what_the_store_refused() -> None:
    made, told = session()
    made.announce([published(1, "it may not delete")])
    made.announce([published(1, "it may not delete"), published(2, "it may not delete")])
    assert [event.text for event in told if isinstance(event, Warned)] == ["it may not delete"]
    assert [event.step for event in told if isinstance(event, CheckpointDone)] == [1, 2]


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
