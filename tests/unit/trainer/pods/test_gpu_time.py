"""GPU-seconds over the attempts of a job: what its checkpoints keep, and what is made again."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lorarl_trainer.pods.gpu_time import GpuTime
from lorarl_trainer.progress import CheckpointDone, EvalDone, Event, MoreWorkers, RunFinished, StepDone, WorkersLost
from unit.trainer.pods.test_status import STARTED, STEP

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
GPUS = 4
FAILED = RunFinished(state="failed", step=3, adapter_uri=None, total_seconds=1.0)


def step(number: int, seconds: float = 10.0) -> StepDone:
    return replace(STEP, step=number, seconds={"generate": seconds - 1, "other": 1.0})


def saved(number: int) -> CheckpointDone:
    return CheckpointDone(step=number, uri="", version=1, sha256="", published_at="")


def after(*events: Event, before: dict[str, int] | None = None, gpus: int = GPUS) -> dict[str, int]:
    counted = GpuTime(gpus, 1, 0, BEGAN)
    for event in events:
        counted.on_event(event, BEGAN + timedelta(seconds=30))
    found: dict[str, int] = counted.as_dict(before or {}).get("gpuSeconds", {})
    return found


def test_a_checkpoint_makes_the_steps_up_to_it_useful() -> None:
    assert after(STARTED, step(1), step(2), step(3), saved(2)) == {
        "useful": 80,
        "lost": 0,
        "startup": 120,
        "unsaved": 40,
    }


def test_time_counts_for_the_gpus_of_that_time() -> None:
    """Two nodes of two GPUs, then one, then two again."""
    both, alone = replace(STARTED, pods=("a", "b")), replace(STARTED, pods=("a",))
    counted = GpuTime(GPUS // 2, 2, 0, BEGAN)
    for event in (both, step(1), saved(1), WorkersLost(""), alone, step(2), saved(2), MoreWorkers(""), both, step(3)):
        counted.on_event(event, BEGAN + timedelta(seconds=30))
    assert counted.as_dict({})["gpuSeconds"] == {"useful": 60, "lost": 0, "startup": 120, "unsaved": 40}


def test_an_evaluation_counts_to_its_step_also_after_the_checkpoint() -> None:
    evaluated = EvalDone(step=1, rows=8, seconds=5.0)
    assert after(STARTED, step(1), evaluated, saved(1))["useful"] == 60
    assert after(STARTED, step(1), saved(1), evaluated, FAILED)["useful"] == 60


def test_what_no_checkpoint_kept_is_lost_when_the_attempt_fails() -> None:
    found = after(STARTED, step(1), saved(1), step(2), step(3), FAILED)
    assert found == {"useful": 40, "lost": 80, "startup": 120, "unsaved": 0}


def test_the_next_attempt_adds_and_finds_lost_what_a_killed_one_left() -> None:
    before = {"useful": 1000, "lost": 100, "startup": 10, "unsaved": 7}
    assert after(before=before) == {"useful": 1000, "lost": 107, "startup": 10, "unsaved": 0}
    assert after(STARTED, step(2), saved(2), before=before) == {
        "useful": 1040,
        "lost": 107,
        "startup": 130,
        "unsaved": 0,
    }


def test_lost_workers_lose_the_steps_that_no_checkpoint_kept() -> None:
    counted = GpuTime(GPUS, 1, 0, BEGAN)
    again = replace(STARTED, resumed_from_step=2)
    timed = [(30, STARTED), (40, step(1)), (50, step(2)), (60, step(3)), (65, WorkersLost("gone")), (85, again)]
    for seconds, event in timed:
        counted.on_event(event, BEGAN + timedelta(seconds=seconds))
    assert counted.as_dict({}) == {"gpuSeconds": {"useful": 80, "lost": 40, "startup": 200, "unsaved": 0}}


def test_an_attempt_that_never_started_has_its_time_in_startup() -> None:
    assert after(FAILED) == {"useful": 0, "lost": 0, "startup": 120, "unsaved": 0}


def test_a_cpu_job_has_none() -> None:
    assert after(STARTED, step(1), gpus=0) == {}


def test_engines_count_however_many_machines_train() -> None:
    counted = GpuTime(1, 2, 3, BEGAN)
    for event in (replace(STARTED, pods=("a", "b")), step(1), saved(1)):
        counted.on_event(event, BEGAN + timedelta(seconds=10))
    assert counted.as_dict({})["gpuSeconds"] == {"useful": 50, "lost": 0, "startup": 50, "unsaved": 0}
