"""The metrics of the jobs: few series, however many jobs the cluster has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lorarl_operator.control.cache import Cache
from lorarl_operator.decide.parse import QUEUE_LABEL
from lorarl_operator.jobs_metrics import JobsCollector
from lorarl_operator.kube.resources import LORARLJOBS
from unit.operator.observed_world import ago, condition, raw_job

type Samples = dict[str, dict[tuple[str, ...], float]]


def cache_of(jobs: dict[str, dict[str, Any]]) -> Cache:
    """A cache with these jobs, given as the status of each name."""
    cache = Cache()
    for name, status in jobs.items():
        cache.put(LORARLJOBS, raw_job(status=status, name=name, uid=name))
    return cache


def samples(cache: Cache) -> Samples:
    """The values of each metric, by the values of its labels."""
    return {
        family.name: {tuple(one.labels.values()): one.value for one in family.samples}
        for family in JobsCollector(cache).collect()
    }


def failed(age: float, reason: str = "OutOfMemory") -> dict[str, Any]:
    """The status of a job that failed this many seconds ago."""
    return {"phase": "Failed", "completionTime": ago(age), "step": 7, "conditions": [condition("Failed", True, reason)]}


def test_an_active_job_has_the_figures_that_its_trainer_reports() -> None:
    metrics = {"reward": 0.5, "tokensPerSecond": 1200.5, "kl": 0.1}
    running = {"phase": "Running", "step": 3, "totalSteps": 10, "metrics": metrics, "attempts": 1, "preemptions": 2}
    found = samples(cache_of({"whole": running}))
    assert {
        name: values[("team", "whole")] for name, values in found.items() if name.startswith("lorarl_job_") and values
    } == {
        "lorarl_job_step": 3,
        "lorarl_job_total_steps": 10,
        "lorarl_job_reward": 0.5,
        "lorarl_job_tokens_per_second": 1200.5,
        "lorarl_job_attempts": 1,
        "lorarl_job_preemptions": 2,
    }


def test_gpu_seconds_are_shown_until_an_hour_after_the_end() -> None:
    spent = {"useful": 80, "lost": 15, "startup": 5, "unsaved": 0}
    now = datetime.now(UTC)
    jobs = {
        "runs": {"phase": "Running", "gpuSeconds": spent},
        "ended": {"phase": "Succeeded", "gpuSeconds": spent, "completionTime": ago(3000, now)},
        "long-ago": {"phase": "Succeeded", "gpuSeconds": spent, "completionTime": ago(4000, now)},
    }
    cache = cache_of(jobs)
    cache.put(LORARLJOBS, raw_job(status=jobs["runs"], name="q", uid="q", labels={QUEUE_LABEL: "research"}))
    found = samples(cache)["lorarl_job_gpu_seconds"]
    assert {(name, queue) for _, name, queue, _ in found} == {("runs", ""), ("ended", ""), ("q", "research")}
    assert {state: found["team", "q", "research", state] for state in spent if state != "unsaved"} == {
        "useful": 80,
        "lost": 15,
        "startup": 5,
    }


def test_held_gpus_are_those_of_the_pods_whatever_the_training_reports() -> None:
    now = datetime.now(UTC)
    forged = {"useful": 0, "lost": 0, "startup": 0, "unsaved": 0}
    jobs = {
        "runs": {"phase": "Running", "gpus": 8, "gpusHeldSince": ago(100, now), "heldGpuSeconds": 50},
        "waits": {"phase": "Pending", "gpus": 8, "heldGpuSeconds": 70},
        "never": {"phase": "Pending", "gpus": 8},
    }
    found = samples(cache_of({name: status | {"gpuSeconds": forged} for name, status in jobs.items()}))
    held = {name: value for (_, name, _), value in found["lorarl_job_held_gpu_seconds"].items()}
    assert set(held) == {"runs", "waits"}
    assert held["waits"] == 70
    assert 850 <= held["runs"] < 900


def test_a_running_job_starts_at_step_0_and_a_waiting_one_has_none() -> None:
    found = samples(
        cache_of({"first": {"phase": "Running"}, "waits": {"phase": "Pending"}, "starts": {"phase": "Starting"}})
    )
    assert found["lorarl_job_step"] == {("team", "first"): 0}


def test_jobs_at_rest_are_only_counted() -> None:
    found = samples(
        cache_of({"new": {}, **{phase: {"phase": phase, "step": 3} for phase in ("Succeeded", "Failed", "Suspended")}})
    )
    assert found.pop("lorarl_jobs") == {("Pending",): 1, ("Succeeded",): 1, ("Failed",): 1, ("Suspended",): 1}
    assert not any(found.values())


def test_a_job_that_failed_is_named_with_its_reason_and_when() -> None:
    found = samples(cache_of({"good": {"phase": "Succeeded", "completionTime": ago(5)}, "bad": failed(60)}))
    (labels,) = found["lorarl_job_failure_timestamp_seconds"]
    assert labels == ("team", "bad", "OutOfMemory")


def test_of_thousands_of_failures_only_the_newest_are_named() -> None:
    found = samples(cache_of({f"job-{age}": failed(age) for age in range(2000)}))
    assert found["lorarl_jobs"] == {("Failed",): 2000}
    times = found["lorarl_job_failure_timestamp_seconds"]
    assert {name for _, name, _ in times} == {f"job-{age}" for age in range(100)}
    assert max(times.values()) - min(times.values()) == 99, "in seconds"


def test_a_malformed_status_does_not_hide_the_others() -> None:
    spoilt = {"when": {**failed(1), "completionTime": "soon"}, "why": {**failed(2), "conditions": "none"}}
    found = samples(cache_of({**spoilt, "bad": failed(3)}))
    assert set(found["lorarl_job_failure_timestamp_seconds"]) == {("team", "why", ""), ("team", "bad", "OutOfMemory")}
