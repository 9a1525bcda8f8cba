"""Metrics of the jobs, read from the cache at each scrape, so that deleted jobs leave nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from lorarl_operator.control.cache import Cache
from lorarl_operator.decide.parse import QUEUE_LABEL, time
from lorarl_operator.decide.status import FAILED, FINISHED, RUNNING, SUSPENDED, well_typed

_LABELS = ["namespace", "job_name"]
"""The label `job` is taken: Prometheus gives it to each target."""
_AT_REST = FINISHED | {SUSPENDED}
_FAILURES_NAMED = 100
"""Failed jobs may stay forever, and thousands may fail at once. This many series show which failed last."""


_GPU_SECONDS = "lorarl_job_gpu_seconds"
_HELD_SECONDS = "lorarl_job_held_gpu_seconds"
_GPU_STATES = ("useful", "lost", "startup")
_SHOWN_AFTER_END = timedelta(hours=1)
"""How long the GPU-seconds of a job that has ended are still shown, so that each Prometheus reads their last value."""

type Family = GaugeMetricFamily | CounterMetricFamily


class JobsCollector(Collector):
    """Jobs by phase, what the trainers of active jobs report, and when and why the last jobs failed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def describe(self) -> Iterator[Family]:
        """Families without samples, so that registration reads no job."""
        yield from self._families().values()

    def collect(self) -> Iterator[Family]:
        """The present samples."""
        families = self._families()
        phases: Counter[str] = Counter()
        failures: list[tuple[float, list[str]]] = []
        for job in self._cache.jobs():
            status = job.read_status()
            phase = str(status.get("phase") or "Pending")
            phases[phase] += 1
            if phase == FAILED and (failed_at := time(status.get("completionTime"))):
                failures.append((failed_at.timestamp(), [job.namespace, job.name, _failure(status)]))
            if phase not in _AT_REST or _has_just_ended(status):
                queue = dict(job.passed_labels).get(QUEUE_LABEL, "")
                if held := _held_seconds(status):
                    families[_HELD_SECONDS].add_metric([job.namespace, job.name, queue], held)
                for state, seconds in _gpu_seconds(status):
                    families[_GPU_SECONDS].add_metric([job.namespace, job.name, queue, state], seconds)
            if phase in _AT_REST:
                continue
            for name, value in _figures(status):
                families[name].add_metric([job.namespace, job.name], value)
        for phase, count in sorted(phases.items()):
            families["lorarl_jobs"].add_metric([phase], count)
        for seconds, labels in nlargest(_FAILURES_NAMED, failures):
            families["lorarl_job_failure_timestamp_seconds"].add_metric(labels, seconds)
        yield from families.values()

    @staticmethod
    def _families() -> dict[str, Family]:
        families: list[Family] = [
            GaugeMetricFamily("lorarl_jobs", "LoRARLJobs by phase.", labels=["phase"]),
            GaugeMetricFamily("lorarl_job_step", "Steps done. Its delta is the speed of training.", labels=_LABELS),
            GaugeMetricFamily("lorarl_job_total_steps", "Steps to do.", labels=_LABELS),
            GaugeMetricFamily(
                "lorarl_job_tokens_per_second", "Tokens generated and trained on per second.", labels=_LABELS
            ),
            GaugeMetricFamily("lorarl_job_reward", "Mean reward of the newest step.", labels=_LABELS),
            GaugeMetricFamily("lorarl_job_attempts", "Attempts that failed.", labels=_LABELS),
            GaugeMetricFamily(
                "lorarl_job_preemptions", "Attempts that were preempted or lost their machine.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "lorarl_job_failure_timestamp_seconds",
                "When a job failed, in seconds since 1970. Only the newest failures.",
                labels=[*_LABELS, "reason"],
            ),
            CounterMetricFamily(
                _GPU_SECONDS,
                "What a job says that its GPUs were used for, in seconds times their number: useful, lost or startup.",
                labels=[*_LABELS, "queue", "state"],
            ),
            CounterMetricFamily(
                _HELD_SECONDS,
                "Seconds for which a job has held its GPUs, times their number, by the times of its pods.",
                labels=[*_LABELS, "queue"],
            ),
        ]
        return {family.name: family for family in families}


def _has_just_ended(status: dict[str, Any]) -> bool:
    ended = time(status.get("completionTime"))
    return ended is not None and datetime.now(UTC) - ended < _SHOWN_AFTER_END


def _held_seconds(status: dict[str, Any]) -> float:
    """Of all attempts, with the present one until now."""
    known = well_typed(status)
    since = time(known.get("gpusHeldSince"))
    present = known.get("gpus", 0) * max(0.0, (datetime.now(UTC) - since).total_seconds()) if since else 0.0
    return float(known.get("heldGpuSeconds", 0) + present)


def _gpu_seconds(status: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Seconds by state, without those in `unsaved`: they move to another state later, and a counter never falls."""
    stored = status.get("gpuSeconds")
    seconds = stored if isinstance(stored, dict) else {}
    for state in _GPU_STATES:
        if isinstance(value := seconds.get(state), int):
            yield state, float(value)


def _failure(status: dict[str, Any]) -> str:
    """Reason of the condition Failed."""
    conditions = well_typed(status).get("conditions", ())
    return next((str(each.get("reason", "")) for each in conditions if each["type"] == "Failed"), "")


def _figures(status: dict[str, Any]) -> Iterator[tuple[str, float]]:
    metrics = status.get("metrics") or {}
    found = {
        # A job that hangs before its first step counts as step 0, so that the alert on hanging jobs sees it.
        "lorarl_job_step": status.get("step", 0 if status.get("phase") == RUNNING else None),
        "lorarl_job_total_steps": status.get("totalSteps"),
        "lorarl_job_tokens_per_second": metrics.get("tokensPerSecond"),
        "lorarl_job_reward": metrics.get("reward"),
        "lorarl_job_attempts": status.get("attempts"),
        "lorarl_job_preemptions": status.get("preemptions"),
    }
    return ((name, float(value)) for name, value in found.items() if isinstance(value, int | float))
