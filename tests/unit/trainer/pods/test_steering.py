"""What a run in a cluster hears while it trains."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from lorarl_trainer.pods.steering import LOOK_AGAIN_SECONDS, LOOK_SECONDS, PodSteering
from unit.contract.manifests import manifest

FIRST, SECOND = "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"


class Stay:
    """Workers whose pods stay."""

    async def drain_asked(self) -> bool:
        return False


class Api:
    """Says since when a drain waits, or nothing at all."""

    def __init__(self) -> None:
        self.since: str | None = ""
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.since is None:
            raise ConnectionError("no answer")
        return self.since


class Run:
    """A run whose clock a test moves."""

    def __init__(self, folder: Path) -> None:
        self.api, self.now = Api(), 0.0
        path = folder / "job.yaml"
        path.write_text(json.dumps(manifest({})))
        self._steering = PodSteering(path, cast("Any", Stay()), self.api, clock=lambda: self.now)

    def is_asked(self, after: float = LOOK_SECONDS, *, stopping: bool = False) -> bool:
        self.now += after
        return asyncio.run(self._steering(10, stopping)).asked


def test_more_workers_start_only_in_a_run_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifest({})))

    def grows(room: bool | None, *, stopping: bool = False) -> bool:
        def has_room() -> bool:
            if room is None:
                raise ConnectionError("Ray does not answer")
            return room

        return asyncio.run(PodSteering(path, cast("Any", Stay()), None, has_room)(10, stopping)).grows

    assert [grows(True), grows(False), grows(None), grows(True, stopping=True)] == [True, False, False, False]


def test_each_drain_that_waits_asks_for_one_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert not run.is_asked()
    run.api.since = FIRST
    assert [run.is_asked() for _ in range(3)] == [True, False, False]
    run.api.since = ""
    assert not run.is_asked()
    run.api.since = SECOND
    assert run.is_asked()


def test_short_steps_do_not_ask_more_often(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(20):
        run.is_asked(after=LOOK_SECONDS / 10)
    assert run.api.asked == 2


def test_an_api_server_that_does_not_answer_delays_no_training(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.api.since = None
    assert not any(run.is_asked() for _ in range(int(LOOK_AGAIN_SECONDS / LOOK_SECONDS)))
    assert run.api.asked == 1
    run.api.since = FIRST
    assert run.is_asked(), "it asks again later"


def test_a_run_that_ends_is_not_asked(tmp_path: Path) -> None:
    """It publishes a checkpoint anyway."""
    run = Run(tmp_path)
    run.api.since = FIRST
    assert not run.is_asked(stopping=True)


def test_without_a_drain_that_may_wait_nobody_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifest({})))
    steering = asyncio.run(PodSteering(path, cast("Any", Stay()))(10, False))
    assert not steering.asked and not steering.leaving
