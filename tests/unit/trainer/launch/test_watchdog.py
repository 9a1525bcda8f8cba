"""When the stacks of a training without progress are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lorarl_trainer.launch.watchdog import Watchdog, due_after
from lorarl_trainer.progress import Noted
from support.cluster.lorarljobs import lorarljob


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """A watchdog over a mounted manifest, and what it has recorded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.published = folder, Clock(), 0
        self.set_limit(None)
        self.watchdog = Watchdog(folder / "job.yaml", folder / "logs", clock=self.clock)
        self.watchdog._publish = self.publish
        self.watchdog.watch(lambda: ["of worker 0", "of worker 1"])

    def publish(self) -> None:
        self.published += 1

    def set_limit(self, seconds: int | None) -> None:
        (self.folder / "job.yaml").write_text(
            yaml.safe_dump(lorarljob("default", "any", **({"progressDeadlineSeconds": seconds} if seconds else {})))
        )

    def at(self, seconds: float) -> bool:
        self.clock.now = seconds
        return self.watchdog.look()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.parametrize(("limit", "due"), [(10, 5), (30, 15), (60, 45), (3600, 3585)])
def test_it_is_time_shortly_before_the_deadline(limit: int, due: float) -> None:
    assert due_after(limit) == due


def test_each_silence_is_recorded_once(run: Run) -> None:
    run.set_limit(60)
    assert not run.at(44.9)
    assert run.at(45)
    assert not run.at(50)
    logs = {path.name: path.read_text() for path in (run.folder / "logs").iterdir()}
    assert logs.keys() == {"stack-driver.log", "stack-0.log", "stack-1.log"}
    assert logs["stack-1.log"] == "No news for 45 s of progressDeadlineSeconds, 60 s.\nof worker 1"
    assert "in test_each_silence_is_recorded_once" in logs["stack-driver.log"]
    assert run.published == 2, "the driver's, and then those of workers, which may not answer"
    run.watchdog.on_event(Noted("a step"))
    assert not run.at(94)
    assert run.at(95)


def test_the_deadline_may_change_while_the_job_runs(run: Run) -> None:
    assert not run.at(1e6), "there is none"
    run.set_limit(60)
    assert run.at(1e6)


def test_news_that_workers_cannot_tell_leave_the_drivers_stacks(run: Run) -> None:
    run.set_limit(60)

    def fails() -> list[str]:
        raise ConnectionError("the machine is gone")

    run.watchdog.watch(fails)
    with pytest.raises(ConnectionError):
        run.at(45)
    assert (run.folder / "logs" / "stack-driver.log").exists() and run.published == 1
