"""An elastic job's cluster, as far as its nodes matter: pods that get a node or wait, KubeRay, and the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Create, Decision, Delete, Event, Scale
from lorarl_operator.decide.models import LABEL_JOB_UID, Evidence, Refusal
from lorarl_operator.decide.names import attempt_of
from unit.operator.observed_world import SETTINGS, START, condition, observed, raw_job, raw_pod, raw_ray_job

GPUS = 8
FULL = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
Raw = dict[str, Any]


@dataclass
class World:
    """What exists, and what was done. A node has room for one worker."""

    fewest: int
    most: int
    room: int
    seconds: float = 0.0
    status: Raw = field(default_factory=dict)
    attempt: int = 0
    asked: int = 0
    """Workers of the attempt's RayJob."""
    replicas: int = 0
    runs: bool = False
    pods: dict[str, float | None] = field(default_factory=dict)
    """By name: when a worker got its node; None while it waits."""
    created: dict[str, float] = field(default_factory=dict)
    trains: frozenset[str] = frozenset()
    alone_since: tuple[int, float] = (0, 0.0)
    changed_at: float = 0.0
    scales: list[tuple[int, int]] = field(default_factory=list)
    """Attempt and replicas of each Scale."""
    events: list[Event] = field(default_factory=list)
    held: float = 0.0
    """GPU-seconds of placed pods."""
    refusal: Refusal | None = None
    _numbers: int = 0

    @property
    def placed(self) -> list[str]:
        return sorted(name for name, at in self.pods.items() if at is not None)

    def wait(self, seconds: float) -> None:
        """Let time pass, in which KubeRay, the scheduler, the driver and the operator work."""
        for _ in range(max(1, round(seconds / 10))):
            self.seconds += 10
            self.held += 10 * GPUS * len(self.placed)
            self.kuberay()
            self._driver()
            self.operate()

    def lose(self) -> None:
        """A node is gone, with the newest worker on it if no other is free."""
        self.room = max(0, self.room - 1)
        if len(self.placed) > self.room:
            del self.pods[self.placed[-1]]
        self.operate()

    def operate(self, killed: bool = False) -> None:
        """Let the operator decide until nothing is left to do, or kill it after it has written the status."""
        for _ in range(6):
            decision = self.decided()
            if decision.status is not None:
                trainers = {
                    key: self.status[key] for key in ("workers", "step", "resumedFromStep") if key in self.status
                }
                self.status = trainers | decision.status
            self.events += decision.events
            if killed:
                return
            for action in decision.actions:
                self._do(action)
            if decision.status is None and not decision.actions:
                return
        raise AssertionError(f"it never comes to rest: {decision}")

    def decided(self) -> Decision:
        now = START + timedelta(seconds=self.seconds)
        cluster = {"nodes": self.most, "minNodes": self.fewest, "gpusPerNode": GPUS}
        job = raw_job({"cluster": cluster}, self.status)
        if not self.attempt:
            return decide(observed(job), now, SETTINGS)
        state = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"} if self.runs else {}
        ray_job = raw_ray_job(self.attempt, **({"jobDeploymentStatus": "Initializing"} | state))
        groups = [{"groupName": "workers", "replicas": self.asked}]
        ray_job["spec"]["rayClusterSpec"] = {"workerGroupSpecs": groups}
        seen = observed(
            job,
            ray_job,
            pods=[self._head(), *map(self._pod, self.pods)],
            ray_clusters=(parse.ray_cluster(self._cluster()),),
            evidence=Evidence(),
            refusal=self.refusal,
        )
        return decide(seen, now, SETTINGS)

    def _do(self, action: object) -> None:
        match action:
            case Create({"kind": "RayJob"} as manifest):
                (group,) = manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"]
                self.attempt = attempt_of("demo", manifest["metadata"]["name"])
                self.asked = self.replicas = group["replicas"]
                self.runs, self.trains, self.pods = False, frozenset(), {}
                assert (group["minReplicas"], group["maxReplicas"]) == (self.fewest, self.most)
                self.kuberay()
            case Delete("RayJob"):
                self.attempt, self.pods, self.replicas, self.runs = 0, {}, 0, False
            case Scale(_, uid, group, replicas, without):
                assert (uid, group) == (f"cluster-uid-{self.attempt}", 1)
                assert self.fewest <= replicas <= self.most
                assert replicas != self.replicas, "no action twice"
                assert not set(without) & set(self.placed), "no worker that has a node goes"
                self.scales.append((self.attempt, replicas))
                self.replicas = replicas
                for name in without:
                    self.pods.pop(name, None)
                self.kuberay()

    def kuberay(self) -> None:
        if not self.attempt:
            return
        assert len(self.pods) <= self.replicas, "otherwise KubeRay would choose whom it deletes"
        while len(self.pods) < self.replicas:
            self._numbers += 1
            self.pods[f"worker-{self._numbers:04}"] = None
            self.created[f"worker-{self._numbers:04}"] = self.seconds
        for name, at in self.pods.items():
            if at is None and len(self.placed) < self.room:
                self.pods[name] = self.seconds
        self.runs = self.runs or len(self.placed) == self.replicas

    def _driver(self) -> None:
        """What `workers/elastic.py` of the trainer does."""
        if not self.attempt:
            return
        there = len(self.placed)
        lost = bool(self.trains - set(self.placed))
        if self.trains and not lost:
            self.alone_since = (0, self.seconds)
            settled = self.seconds - self.changed_at >= SETTINGS.elastic_grow_seconds
            if there > len(self.trains) and settled:
                self._train()
            return
        if lost and "lost" not in self.status.get("workers", {}) and "workers" in self.status:
            self.status["workers"] = self.status["workers"] | {"lost": "a worker's machine or pod is gone"}
            self.alone_since = (0, self.seconds)
        if there > self.alone_since[0]:
            self.alone_since = (there, self.seconds)
        late = self.seconds - self.alone_since[1] >= SETTINGS.elastic_wait_seconds
        if there == self.most or (late and there >= self.fewest):
            self._train()

    def _train(self) -> None:
        self.trains, self.changed_at = frozenset(self.placed), self.seconds
        self.status["workers"] = {"attempt": self.attempt, "pods": self.placed}
        self.status["step"] = self.status.get("step", 0) + 1

    def _head(self) -> Raw:
        return raw_pod("head", self.attempt, conditions=[condition("Ready", True)])

    def _pod(self, name: str) -> Raw:
        at, age = self.pods[name], -self.created[name]
        if at is None:
            waits = condition("PodScheduled", False, "Unschedulable", FULL, age=age)
            return raw_pod("worker", self.attempt, name=name, age=age, phase="Pending", nodeName="", conditions=[waits])
        done = [condition("PodScheduled", True, age=-at), condition("Ready", True, age=-at)]
        return raw_pod("worker", self.attempt, name=name, age=age, nodeName=f"node-{name}", conditions=done)

    def _cluster(self) -> Raw:
        about = {"name": f"cluster-{self.attempt}", "uid": f"cluster-uid-{self.attempt}", "resourceVersion": "1"}
        about["labels"] = {LABEL_JOB_UID: "job-uid"}
        groups = [{"groupName": "others", "replicas": 7}, {"groupName": "workers", "replicas": self.replicas}]
        return {"metadata": about, "spec": {"workerGroupSpecs": groups}}
