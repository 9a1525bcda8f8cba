"""The events of a run become the trainer's part of the job's status."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobStatus
from lorarl_trainer.pods.status import RunStatus
from lorarl_trainer.pods.status_sink import readable
from lorarl_trainer.progress import (
    BestFound,
    CheckpointDone,
    EvalDone,
    MoreWorkers,
    RecordOpened,
    RunFinished,
    RunStarted,
    StepDone,
    WorkersLost,
)
from lorarl_trainer.progress.events import AdapterSummary

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: tiny, namespace: team}
spec:
  model: {uri: hf://org/base}
  adapter: {rank: 16, targetModules: [all-linear]}
  reward: {type: exact}
  data: {train: {uri: file:rows.jsonl}}
  checkpoint: {uri: file:out}
"""
JOB = load_job(MANIFEST)
STARTED = RunStarted(
    job="tiny",
    base_model="org/base",
    algorithm="grpo",
    adapter=AdapterSummary(type="lora", rank=16, alpha=32, modules=("q",), trainable_parameters=1, total_parameters=2),
    total_steps=30,
    resumed_from_step=None,
    out_dir="out",
    manifest="",
)
STEP = StepDone(
    step=7,
    total_steps=30,
    adapter_version=8,
    metrics={"loss": 0.1, "grad_norm": 1.0, "learning_rate": 1e-4, "reward_mean": 0.500049},
    tokens=100,
    tokens_per_second=123.456,
    seconds={},
)
EVALUATED = EvalDone(step=7, rows=8, score=0.75)
CHECKPOINT = CheckpointDone(
    step=7, uri="s3://b/tiny/iter_7", version=8, sha256="0" * 64, published_at="2026-01-31T12:00:00.000001Z"
)
BEFORE = {
    "phase": "Running",
    "step": 20,
    "totalSteps": 30,
    "progress": "20/30",
    "metrics": {"reward": 0.25, "evalScore": 0.5},
    "adapter": {"uri": "s3://b/tiny/iter_20", "step": 20, "version": 21},
    "failure": {"reason": "WorkerFailed", "message": "m", "attempt": 1},
    "attempts": 1,
}


def status_after(*events: object, before: dict[str, object] | None = None) -> dict[str, object]:
    status = RunStatus(JOB, attempt=2, now=lambda: datetime(2026, 3, 1, 12, tzinfo=UTC))
    for event in events:
        status.on_event(event)  # type: ignore[arg-type]
    result = status.as_dict(before or {})
    LoRARLJobStatus.model_validate(result)
    return result


def test_a_step_reports_progress_metrics_and_the_adapter() -> None:
    assert status_after(STARTED, STEP, EVALUATED, CHECKPOINT) == {
        "step": 7,
        "totalSteps": 30,
        "progress": "7/30",
        "metrics": {"reward": 0.5, "evalScore": 0.75, "tokensPerSecond": 123.5},
        "adapter": {
            "uri": "s3://b/tiny/iter_7",
            "step": 7,
            "version": 8,
            "sha256": "0" * 64,
            "baseModel": "hf://org/base",
            "rank": 16,
            "publishedAt": "2026-01-31T12:00:00.000001Z",
        },
        "checkpointTime": "2026-01-31T12:00:00.000001Z",
    }


def test_the_time_that_is_left_follows_the_newest_steps() -> None:
    now = [datetime(2026, 3, 1, 12, tzinfo=UTC)]
    status = RunStatus(JOB, attempt=1, now=lambda: now[0])
    status.on_event(STARTED)

    def left(step: int, seconds: float) -> object:
        now[0] += timedelta(seconds=seconds)
        status.on_event(replace(STEP, step=step, total_steps=100))
        return status.as_dict({}).get("estimatedRemainingSeconds")

    assert [left(1, 300), left(2, 10), left(3, 20)] == [None, 98 * 10, 97 * 15], "the first one compiles kernels"
    assert [left(step, 5) for step in range(4, 24)][-1] == 77 * 5, "20 steps tell the pace"
    status.on_event(replace(STARTED, resumed_from_step=20))
    assert left(21, 600) == 77 * 5, "the last estimate, until there is one of the new workers"
    assert left(22, 4) == 78 * 4
    assert left(100, 4) == 0


def test_steps_that_are_cut_below_what_is_done_end_the_count() -> None:
    """The user lowered trainer.steps to 5 when step 7 had begun: `7/5` would look like an error."""
    status = status_after(STARTED, replace(STEP, total_steps=5))
    assert (status["step"], status["totalSteps"], status["progress"]) == (7, 7, "7/7")


def test_while_loading_the_status_keeps_the_last_attempts_progress() -> None:
    """Only the failure of that attempt is dropped."""
    kept = {key: BEFORE[key] for key in ("step", "totalSteps", "progress", "metrics", "adapter")}
    assert status_after(before=BEFORE) == kept


def test_a_resumed_run_keeps_the_adapter_until_it_has_a_newer_one() -> None:
    resumed = replace(STARTED, resumed_from_step=20)
    assert status_after(resumed, before=BEFORE) == {
        "step": 20,
        "totalSteps": 30,
        "progress": "20/30",
        "resumedFromStep": 20,
        "metrics": BEFORE["metrics"],
        "adapter": BEFORE["adapter"],
    }
    later = status_after(resumed, replace(STEP, step=21), before=BEFORE)
    assert later["metrics"] == {"reward": 0.5, "evalScore": 0.5, "tokensPerSecond": 123.5}


def test_a_run_from_the_start_drops_the_previous_status() -> None:
    assert status_after(STARTED, before=BEFORE) == {"step": 0, "totalSteps": 30, "progress": "0/30"}


def test_the_worker_pods_are_named_and_so_is_their_loss_until_others_train() -> None:
    """By these names the operator knows which losses matter, and when the training has recovered."""
    here, lost = replace(STARTED, pods=("a", "b")), WorkersLost("a worker's machine is gone")
    assert status_after(here, STEP)["workers"] == {"attempt": 2, "pods": ["a", "b"]}
    assert status_after(here, lost)["workers"] == {"attempt": 2, "pods": ["a", "b"], "lost": lost.text}
    more = MoreWorkers("there are machines for more workers")
    assert status_after(here, more)["workers"] == {"attempt": 2, "pods": ["a", "b"], "growing": more.text}
    assert status_after(here, more, here)["workers"] == {"attempt": 2, "pods": ["a", "b"]}
    recovered = replace(STARTED, pods=("a", "c"), resumed_from_step=6)
    after = status_after(here, STEP, lost, recovered)
    assert (after["workers"], after["step"]) == ({"attempt": 2, "pods": ["a", "c"]}, 6)
    assert "workers" not in status_after(before={**BEFORE, "workers": after["workers"]}), "another attempt"


def test_the_record_stays_until_the_next_attempt_has_one() -> None:
    before = {**BEFORE, "record": "s3://b/tiny/runs/0001"}
    for events in ((), (STARTED,), (replace(STARTED, resumed_from_step=20),)):
        assert status_after(*events, before=before)["record"] == "s3://b/tiny/runs/0001"
    assert status_after(RecordOpened("s3://b/tiny/runs/0002"), before=before)["record"] == "s3://b/tiny/runs/0002"


def test_a_failure_carries_its_reason_and_the_attempt() -> None:
    failed = RunFinished(
        state="failed", step=7, adapter_uri=None, total_seconds=1.0, message="no room", reason="StorageFailed"
    )
    assert status_after(STARTED, STEP, failed)["failure"] == {
        "reason": "StorageFailed",
        "message": "no room",
        "attempt": 2,
        "time": "2026-03-01T12:00:00Z",
    }
    long = status_after(STARTED, replace(failed, message="x" * 100_000))
    assert len(long["failure"]["message"]) == 4096  # type: ignore[index]


def test_a_successful_run_reports_no_failure() -> None:
    succeeded = RunFinished(state="succeeded", step=30, adapter_uri="u", total_seconds=1.0)
    assert "failure" not in status_after(STARTED, STEP, succeeded)


def test_characters_that_the_api_server_cannot_read_are_replaced() -> None:
    status = {
        "step": 3,
        "failure": {"reason": "RewardFailed", "message": 'ZeroDivisionError in "\U0001f525 grün\\u0041"'},
    }
    assert readable(status) == {
        "step": 3,
        "failure": {
            "reason": "RewardFailed",
            "message": 'ZeroDivisionError in "\N{REPLACEMENT CHARACTER} grün\\u0041"',
        },
    }


def test_the_first_evaluation_and_the_best_checkpoint_are_shown() -> None:
    evals = "[{name: hard, uri: 'file:a.jsonl'}, {name: easy, uri: 'file:b.jsonl'}]"
    job = load_job(MANIFEST, [f"spec.data.evals={evals}"])
    status = RunStatus(job, 1)
    best = BestFound(step=7, uri="s3://b/tiny/iter_7", metric="eval_hard/score", value=0.750049, sha256="a" * 64)
    for event in (STARTED, STEP, replace(EVALUATED, name="hard"), replace(EVALUATED, name="easy", score=0.25), best):
        status.on_event(event)
    found = status.as_dict({})
    assert found["metrics"]["evalScore"] == 0.75
    shown = {"uri": best.uri, "step": 7, "metric": best.metric, "value": 0.75}
    assert found["best"] == shown | {"sha256": best.sha256}
    status.on_event(replace(best, sha256=None))
    assert status.as_dict({})["best"] == shown, "one that an older version chose"
    LoRARLJobStatus.model_validate(found)
    resumed = RunStatus(job, 2)
    resumed.on_event(replace(STARTED, resumed_from_step=7))
    assert resumed.as_dict(found)["best"] == found["best"]
