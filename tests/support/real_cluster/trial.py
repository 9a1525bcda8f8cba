"""A job on trial: it takes many faults, and each must be overcome, cost little, and be counted right."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from node.installation import SYSTEM
from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.real_cluster import example
from support.real_cluster.watched import Cost, Watched

START_SECONDS = 300.0
"""At most from a manifest, or from the end of an attempt, to steps on a busy machine. A minute is usual."""


COUNTED_SECONDS = 20.0


@dataclass
class Trial:
    """The job under trial, and what its trials have cost so far."""

    cluster: RealCluster
    job: Watched
    out: Path
    costs: dict[str, Cost] = field(default_factory=dict)
    counters: tuple[int, ...] = ()
    """What the job's status must say: attempts and preemptions. A busy machine may have failed the very first start."""
    restarts: int = 0
    """How many runs have begun after the first."""

    @contextmanager
    def fault(
        self, name: str, *, attempts: int = 0, preemptions: int = 0, suspended: bool = False, recovered: bool = False
    ) -> Iterator[None]:
        """The block is the fault; when it is overcome it must have cost a step at most, and be counted as said.

        Args:
            name: For the table.
            attempts: How many ends of an attempt are by the job's own fault.
            preemptions: How many are not.
            suspended: Whether a new run follows without an attempt that failed.
            recovered: Whether the same attempt continues with new workers.
        """
        since, struck = self.job.settle(START_SECONDS), time.monotonic()
        before = self.counters or since.counters
        yield
        cost = self.costs[name] = self.job.cost(
            since, struck, START_SECONDS, anew=bool(attempts or preemptions or suspended)
        )
        print(f"{name}: {cost.steps_lost} steps lost, {cost.seconds} s")
        example.note(self.out, faults={each: asdict(cost) for each, cost in self.costs.items()})
        known = since.status.get("recoveries", 0)
        if recovered:  # The trainer reports its next step before the operator has counted.
            self.job.until(COUNTED_SECONDS, "it is counted", lambda seen: seen.status.get("recoveries", 0) > known)
        status = self.job.now.status
        self.counters = before[0] + attempts, before[1] + preemptions
        self.restarts += attempts + preemptions + suspended - recovered
        assert self.job.now.counters == self.counters, status
        assert status["restarts"] == sum(self.counters), status
        assert cost.steps_lost <= 1
        assert status.get("recoveries", 0) == known + recovered, status
        assert not recovered or status["rayJobName"] == since.status["rayJobName"], "the RayJob stays"
        assert {pod["metadata"]["labels"]["lorarl.io/attempt"] for pod in self.pods()} == {
            status["rayJobName"].rpartition("-")[2]
        }

    def pods(self) -> list[Object]:
        """All pods that there are of the job. None of an earlier attempt may be left: it would hold GPUs."""
        return self.cluster.api.list("Pod", self.job.namespace, labels=f"lorarl.io/job={self.job.name}")

    def delete_pod(self, role: str) -> None:
        """`kubectl delete pod`, as anybody might."""
        self.cluster.must(
            "delete", "pod", self.job.pod(role)["metadata"]["name"], "-n", self.job.namespace, "--wait=false"
        )

    def delete_operator(self) -> None:
        """All replicas at once."""
        self.cluster.must("delete", "pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator", "--wait=false")

    def set_spec(self, patch: Object) -> None:
        """Change the job."""
        self.cluster.api.patch("LoRARLJob", self.job.name, {"spec": patch}, self.job.namespace)

    def phase(self, phase: str) -> None:
        """Return when the job is in that phase."""
        self.job.until(START_SECONDS, phase, lambda seen: seen.status.get("phase") == phase)
