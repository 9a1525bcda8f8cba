"""Several runs on one folder: the newest start wins, and readers never see anything but whole checkpoints."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from lorarl_trainer.checkpoint.contents import ADAPTER_MODEL
from lorarl_trainer.errors import FencedError
from lorarl_trainer.storage import LocalStore, Store
from support.checkpoints import JOB, checkpoint, checkpoints, read_latest, require_whole, small_checkpoint

WAIT = 20.0
OPERATIONS = ("get_tagged", "put_if_absent", "replace_if", "entries", "folders", "delete")


class PausedStore:
    """A store whose user stops just before its operation number `pause_before`, until released."""

    def __init__(self, store: Store, pause_before: int) -> None:
        self.store, self.left = store, pause_before
        self.stopped, self.released = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name == "get":
            return lambda path: (read := self.get_tagged(path)) and read[0]
        return self._gated(found) if name in OPERATIONS else found

    def _gated(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*arguments: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.stopped.set()
                assert self.released.wait(WAIT)
            return operation(*arguments)

        return gated


class Run(threading.Thread):
    """A run in its own thread that stops before operation number `pause_before`."""

    def __init__(
        self, store: Store, pause_before: int, name: str, resume: Literal["Auto", "Never"], steps: tuple[int, ...]
    ) -> None:
        super().__init__(name=name)
        self.paused = PausedStore(store, pause_before)
        self.resume, self.steps = resume, steps
        self.run_store = checkpoints(self.paused)
        self.fenced: FencedError | None = None
        self.error: BaseException | None = None
        self.published: list[int] = []
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self.run_store.start(self.resume)
            for step in self.steps:
                self.published.append(self.run_store.publish(small_checkpoint(step, self.name)).step)
        except FencedError as error:
            self.fenced = error
        except Exception as error:  # noqa: BLE001 - raised by to_its_end, in the test's own thread
            self.error = error
        finally:
            self.done.set()
            self.paused.stopped.set()

    def until_paused(self) -> bool:
        """Whether it stopped before its end."""
        if not self.is_alive() and not self.done.is_set():
            self.start()
        assert self.paused.stopped.wait(WAIT)
        return not self.done.is_set()

    def to_its_end(self) -> None:
        self.paused.released.set()
        self.join(WAIT)
        assert self.done.is_set()
        if self.error is not None:
            raise self.error


def set_up(store: Store) -> None:
    """An older run published 10 and 20, and was killed while it uploaded 30."""
    older = checkpoints(store)
    older.start("Auto")
    older.publish(small_checkpoint(10))
    older.publish(small_checkpoint(20))
    left_behind = small_checkpoint(30, "older").files
    store.put(f"{JOB}/iter_0000030/{ADAPTER_MODEL}", left_behind[ADAPTER_MODEL])


def interleave(store: Store, first: Run, second: Run) -> bool:
    """The first stops somewhere, the second starts and stops somewhere, the first runs to its end, then the second."""
    stopped = first.until_paused()
    second.until_paused()
    require_whole(store)
    first.to_its_end()
    require_whole(store)
    second.to_its_end()
    require_whole(store)
    winner, loser = (first, second) if first.run_store.epoch > second.run_store.epoch else (second, first)
    assert winner.fenced is None
    assert winner.published == list(winner.steps)
    assert read_latest(store)["epoch"] == winner.run_store.epoch
    assert loser.fenced is not None or loser.published == list(loser.steps)
    return stopped


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("resume", ["Auto", "Never"])
def test_two_runs_paused_at_any_moments_never_show_a_broken_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: Literal["Auto", "Never"], every: int
) -> None:
    """At each moment of the first, and each so many moments of the second: others each time."""
    monkeypatch.setattr("os.fsync", lambda _: None)  # power cuts are not the subject, and there are hundreds of runs
    set_up(LocalStore(tmp_path / "template"))
    steps = (30,) if resume == "Auto" else (10,)
    combinations = 0
    for pause_first in range(1, 100):
        for pause_second in range(1 + pause_first % every, 100, every):
            folder = tmp_path / f"{pause_first}-{pause_second}"
            shutil.copytree(tmp_path / "template", folder)
            store = LocalStore(folder)
            first = Run(store, pause_first, "first", "Auto", (30,))
            second = Run(store, pause_second, "second", resume, steps)
            first_stopped = interleave(store, first, second)
            combinations += 1
            shutil.rmtree(folder)
            if second.paused.left > 0:
                break
        if not first_stopped:
            break
    assert combinations > 200 / every


@pytest.mark.parametrize("resume", ["Auto", "Never"])
def test_a_run_paused_at_any_moment_is_fenced_off_by_a_newer_one_on_s3(
    s3_store: Store, resume: Literal["Auto", "Never"]
) -> None:
    for pause in range(1, 100):
        s3_store.delete([entry.path for entry in s3_store.entries(JOB)])
        set_up(s3_store)
        first = Run(s3_store, pause, "first", "Auto", (30,))
        if not interleave(s3_store, first, Run(s3_store, 1000, "second", resume, (30,) if resume == "Auto" else (10,))):
            break
    assert pause > 10


def test_a_deletion_that_was_held_up_finds_nothing_of_a_newer_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    set_up(store)
    held = threading.Event(), threading.Event()
    slow = checkpoints(store, keep=1)
    slow.start("Auto")
    delete = store.delete

    def held_up(paths: Sequence[str]) -> None:
        held[0].set()
        assert held[1].wait(WAIT)
        delete(paths)

    slow.store = PausedStore(store, -1)
    slow.store.delete = held_up
    thread = threading.Thread(target=lambda: slow.publish(checkpoint(30, "slow")))
    thread.start()
    assert held[0].wait(WAIT), "it is about to delete iter_0000010 and iter_0000020"
    newer = checkpoints(store)
    newer.start("Never")
    for step in (10, 20):
        newer.publish(checkpoint(step, "newer"))
    held[1].set()
    thread.join(WAIT)
    assert require_whole(store) == 20
    assert read_latest(store)["epoch"] == newer.epoch


def test_the_error_says_who_took_over_and_what_was_kept(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    older, newer = checkpoints(store), checkpoints(store)
    older.start("Auto")
    older.publish(checkpoint(10))
    newer.start("Auto")
    with pytest.raises(FencedError) as fenced:
        older.publish(checkpoint(20))
    message = str(fenced.value)
    assert f"epoch 2 took over at {read_latest(store)['claimedAt']}" in message
    assert "This run, epoch 1, stops; its last checkpoint was step 10" in message
    assert "The newer run's files were not changed" in message
    assert store.folders(JOB) == ["iter_0000010"], "it was fenced off before it uploaded anything"


def test_of_starts_at_the_same_moment_each_has_its_own_epoch(store: Store) -> None:
    runs = [checkpoints(store) for _ in range(5)]
    threads = [threading.Thread(target=run.claim) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(run.epoch for run in runs) == [1, 2, 3, 4, 5]
    newest = max(runs, key=lambda run: run.epoch)
    for run in runs:
        if run is not newest:
            with pytest.raises(FencedError, match="epoch 5 took over"):
                run.publish(checkpoint(10, str(run.epoch)))
    newest.publish(checkpoint(10))
    assert require_whole(store) == 10


def test_what_an_older_run_publishes_between_look_and_claim_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    older, newer = checkpoints(store), checkpoints(store)
    older.start("Auto")
    older.publish(checkpoint(10))
    claim = newer.claim

    def late_claim() -> list[str]:
        older.publish(checkpoint(20))
        return claim()

    monkeypatch.setattr(newer, "claim", late_claim)
    started = newer.start("Auto")
    assert started.found is not None
    assert started.found.manifest.step == 20
