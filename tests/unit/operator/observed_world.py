"""API objects as the servers send them, and a tiny in-memory API server that carries decisions out."""

from __future__ import annotations

import copy
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from lorarl_operator import parse
from lorarl_operator.decide import decide
from lorarl_operator.decision import AddFinalizer, Apply, Create, Decision, Delete, DeleteJob, Event, RemoveFinalizer
from lorarl_operator.models import FINALIZER, LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE, Observed, Refusal
from lorarl_operator.settings import Settings
from lorarl_operator.status import FIELDS, timestamp

SETTINGS = Settings(trainer_image="registry.example.com/lorarl/trainer:0.1.0")
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
Raw = dict[str, Any]

SPEC: Raw = {
    "model": {"uri": "hf://Qwen/Qwen2.5-0.5B"},
    "adapter": {"targetModules": ["all-linear"]},
    "reward": {"type": "exact"},
    "data": {"train": {"uri": "s3://team/train.jsonl", "promptField": "q", "answerField": "a"}},
    "checkpoint": {"uri": "s3://team/adapters", "credentialsSecret": "s3-keys"},
}


def ago(seconds: float, now: datetime = START) -> str:
    """A time in the API's format, this many seconds before now."""
    return timestamp(now - timedelta(seconds=seconds))


def raw_job(spec: Raw | None = None, status: Raw | None = None, **metadata: Any) -> Raw:
    """A LoRARLJob `demo`. `spec` overrides parts of a valid one."""
    about = {
        "namespace": "team",
        "name": "demo",
        "uid": "job-uid",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": ago(60),
    }
    return {"metadata": about | metadata, "spec": SPEC | (spec or {}), "status": status or {}}


def raw_ray_job(
    attempt: int = 1, *, age: float = 60, owner: str = "job-uid", suspend: bool = False, **status: Any
) -> Raw:
    """A RayJob of attempt `attempt`, created `age` seconds ago."""
    return {
        "metadata": {
            "name": f"demo-{attempt}",
            "uid": f"ray-{attempt}",
            "resourceVersion": "1",
            "creationTimestamp": ago(age),
            "labels": {LABEL_JOB: "demo", LABEL_JOB_UID: owner},
            "annotations": {"lorarl.io/generation": "1"},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "spec": {"suspend": suspend},
        "status": {"rayClusterName": f"cluster-{attempt}", **status},
    }


def raw_pod(role: str = "worker", attempt: int = 1, *, name: str = "", age: float = 60, **parts: Any) -> Raw:
    """A pod, created `age` seconds ago.

    `parts` belong to its status, except deletionTimestamp, deletionGracePeriodSeconds and nodeName.
    """
    about: Raw = {
        "name": name or f"demo-{attempt}-{role}",
        "uid": f"pod-{role}-{attempt}",
        "resourceVersion": "1",
        "creationTimestamp": ago(age),
        "labels": {LABEL_JOB: "demo", LABEL_JOB_UID: "job-uid", LABEL_ATTEMPT: str(attempt), LABEL_ROLE: role},
    }
    about["labels"]["ray.io/cluster"] = f"cluster-{attempt}"
    about |= {key: parts.pop(key) for key in ("deletionTimestamp", "deletionGracePeriodSeconds") if key in parts}
    return {
        "metadata": about,
        "spec": {"nodeName": parts.pop("nodeName", "node-1")},
        "status": {"phase": "Running", **parts},
    }


def condition(kind: str, holds: bool, reason: str = "", message: str = "", age: float = 0) -> Raw:
    """A condition of any object."""
    return {"type": kind, "status": str(holds), "reason": reason, "message": message, "lastTransitionTime": ago(age)}


def ended(role: str, code: int, reason: str = "Error", message: str = "", age: float = 1) -> list[Raw]:
    """containerStatuses of a pod whose Ray container has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": ago(age)}}
    return [{"name": f"ray-{role}", "state": state}]


def init_failed(role: str, code: int = 1, message: str = "no such model", *, age: float = 1, **parts: Any) -> Raw:
    """A pod whose init container `fetch` has failed."""
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message, "finishedAt": ago(age)}}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    return raw_pod(
        role,
        phase="Failed",
        initContainerStatuses=[{"name": "fetch", "state": state}],
        containerStatuses=[{"name": f"ray-{role}", "state": waiting}],
        **parts,
    )


def observed(job: Raw, *ray_jobs: Raw, pods: list[Raw] | None = None, **rest: Any) -> Observed:
    """An observation, parsed."""
    return Observed(
        job=parse.job(job),
        ray_jobs=tuple(parse.ray_job(each) for each in ray_jobs),
        pods=tuple(parse.pod(each) for each in pods or []),
        **rest,
    )


def steps_of(spec: Raw) -> int:
    """The steps in a spec."""
    return int(spec.get("trainer", {}).get("steps", 200))


class World:
    """Objects of one job, changed by a test, with an operator that may be killed between any two of its writes."""

    def __init__(self, spec: Raw | None = None, labels: dict[str, str] | None = None) -> None:
        self.now = START
        self.job: Raw | None = raw_job(spec, labels=labels or {})
        self.older_job = copy.deepcopy(self.job)
        self.ray_jobs: dict[str, Raw] = {}
        self.pods: list[Raw] = []
        self.cleanup: Raw | None = None
        self.refusal: Refusal | None = None
        self.events: list[Event] = []
        self.applied: list[Raw] = []
        self.writes = 0
        self.made = 0
        self.steps: dict[str, int] = {}
        """By RayJob, the steps that its training does: it sees no change."""
        self.failures: set[int] = set()
        self.plain_failures: set[int] = set()
        """Failures that nothing else can have caused."""

    # ---- the API server

    def look(self, *, stale_job: bool = False) -> Observed:
        job = self.older_job if stale_job else self.job
        assert job is not None
        cleanup = parse.cleanup_job(self.cleanup) if self.cleanup else None
        return observed(job, *self.ray_jobs.values(), pods=self.pods, cleanup=cleanup, refusal=self.refusal)

    def carry_out(self, decision: Decision, seen: Observed, killed_after: int | None = None) -> None:
        """Carry a decision out.

        The operator dies after `killed_after` writes. A conflict stops it, like the controller.
        """
        steps: list[Any] = [*decision.prepare]
        if decision.status is not None:
            steps.append(decision.status)
        steps += decision.actions
        for number, step in enumerate(steps):
            if number == killed_after or self.job is None or not self._write(step, seen):
                return
            if isinstance(step, dict):
                self.events += decision.events
        if decision.status is None:
            self.events += decision.events

    def step(self, killed_after: int | None = None, *, stale_job: bool = False) -> Decision:
        """Observe, decide and carry out once."""
        seen = self.look(stale_job=stale_job)
        decision = decide(seen, self.now, SETTINGS)
        self.carry_out(decision, seen, killed_after)
        return decision

    def settle(self, limit: int = 20) -> None:
        """Repeat until nothing more is decided."""
        for _ in range(limit):
            if self.job is None:
                return
            before = (self.writes, len(self.ray_jobs))
            self.step()
            if (self.writes, len(self.ray_jobs)) == before:
                return
        raise AssertionError(f"the operator never stops writing: {self.job}")

    def _write(self, step: Any, seen: Observed) -> bool:
        self.writes += 1
        assert self.job is not None
        about = self.job["metadata"]
        match step:
            case dict():
                if seen.job.resource_version != about["resourceVersion"]:
                    return False
                self.touch(
                    {key: value for key, value in self.job["status"].items() if key not in FIELDS} | copy.deepcopy(step)
                )
            case Apply(manifest):
                self.applied.append(manifest)
            case Create(manifest):
                return self._create(manifest, seen)
            case Delete("RayJob", name, uid):
                if name in self.ray_jobs and self.ray_jobs[name]["metadata"]["uid"] == uid:
                    self.delete_ray_job(name)
            case AddFinalizer():
                about["finalizers"] = [FINALIZER]
                self.touch()
            case RemoveFinalizer():
                self._release()
            case DeleteJob():
                self.delete_job()
            case _:
                raise AssertionError(f"unknown action {step}")
        return True

    def _release(self) -> None:
        self.job["metadata"]["finalizers"] = []
        if "deletionTimestamp" in self.job["metadata"]:
            self.job = None
        else:
            self.touch()

    def _create(self, manifest: Raw, seen: Observed) -> bool:
        if manifest["kind"] == "Job":
            self.cleanup = self.cleanup or {"metadata": manifest["metadata"] | {"uid": "cleanup-uid"}}
            return True
        name = manifest["metadata"]["name"]
        if name in self.ray_jobs:
            return False
        self.made += 1
        self.steps[name] = steps_of(seen.job.read_spec())
        about = manifest["metadata"] | {
            "uid": f"ray-uid-{self.made}",
            "resourceVersion": "1",
            "creationTimestamp": timestamp(self.now),
        }
        queued = "kueue.x-k8s.io/queue-name" in manifest["metadata"]["labels"]
        status = {"rayClusterName": f"cluster-{self.made}"}
        self.ray_jobs[name] = {"metadata": about, "spec": {"suspend": queued}, "status": status}
        live = [each for each in self.ray_jobs.values() if "deletionTimestamp" not in each["metadata"]]
        assert len(live) == 1, f"two live RayJobs: {[each['metadata']['name'] for each in live]}"
        return True

    # ---- everyone else

    def touch(self, status: Raw | None = None, spec: Raw | None = None) -> None:
        """A new version of the job."""
        assert self.job is not None
        self.older_job = copy.deepcopy(self.job)
        about = self.job["metadata"]
        about["resourceVersion"] = str(int(about["resourceVersion"]) + 1)
        if status is not None:
            self.job["status"] = status
        if spec is not None:
            self.job["spec"] = self.job["spec"] | spec
            about["generation"] += 1

    @property
    def phase(self) -> str:
        return str(self.job["status"].get("phase", "")) if self.job else "gone"

    @property
    def current(self) -> Raw | None:
        """The RayJob that is not being deleted."""
        return next((each for each in self.ray_jobs.values() if "deletionTimestamp" not in each["metadata"]), None)

    def delete_job(self) -> None:
        if self.job is None:
            return
        if self.job["metadata"].get("finalizers"):
            self.job["metadata"].setdefault("deletionTimestamp", timestamp(self.now))
            self.touch()
        else:
            self.job, self.ray_jobs, self.pods = None, {}, []

    def delete_ray_job(self, name: str) -> None:
        """By anyone: the pods get their grace period."""
        about = self.ray_jobs[name]["metadata"]
        about.setdefault("deletionTimestamp", timestamp(self.now))
        for pod in self.pods:
            pod["metadata"].setdefault("deletionTimestamp", timestamp(self.now + timedelta(seconds=120)))
            pod["metadata"].setdefault("deletionGracePeriodSeconds", 120)

    def collect(self) -> None:
        """KubeRay's finalizer and the garbage collector finish all deletions."""
        self.ray_jobs = {
            name: each for name, each in self.ray_jobs.items() if "deletionTimestamp" not in each["metadata"]
        }
        self.pods = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]

    def kuberay(self, **status: Any) -> None:
        """KubeRay writes the status of the live RayJob."""
        if self.current:
            self.current["status"] |= status

    def bring_up(self) -> None:
        """The RayCluster is up and its driver runs."""
        ray_job = self.current
        if (
            ray_job is None
            or ray_job["status"].get("jobDeploymentStatus") in ("Complete", "Failed")
            or ray_job["spec"]["suspend"]
        ):
            return
        attempt, cluster = int(ray_job["metadata"]["labels"][LABEL_ATTEMPT]), ray_job["status"]["rayClusterName"]
        if not any(pod["metadata"]["labels"]["ray.io/cluster"] == cluster for pod in self.pods):
            for role in ("head", "worker"):
                pod = raw_pod(role, attempt, conditions=[condition("Ready", True)])
                pod["metadata"]["labels"]["ray.io/cluster"] = cluster
                self.pods.append(pod)
        self.kuberay(
            jobDeploymentStatus="Running",
            jobStatus="RUNNING",
            dashboardURL="demo-head:8265",
            startTime=timestamp(self.now),
        )

    def succeed(self) -> None:
        """The trainer finishes its steps and reports that."""
        if self._at_work():
            steps = self.steps[self.current["metadata"]["name"]]
            self.touch(self.job["status"] | {"step": steps, "totalSteps": steps})
            self.kuberay(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED", endTime=timestamp(self.now))

    def fail(self) -> None:
        """The trainer fails by its own fault and reports that."""
        if not self._at_work():
            return
        attempt = int(self.current["metadata"]["labels"][LABEL_ATTEMPT])
        self.touch(
            self.job["status"] | {"failure": {"reason": "OutOfMemory", "message": "too large", "attempt": attempt}}
        )
        self.kuberay(jobDeploymentStatus="Failed", reason="AppFailed", endTime=timestamp(self.now))
        self.failures.add(attempt)
        if self.phase in ("Starting", "Running") and not any(
            "deletionTimestamp" in pod["metadata"] for pod in self.pods
        ):
            self.plain_failures.add(attempt)
        self.now += timedelta(seconds=1)

    def _at_work(self) -> bool:
        return bool(self.job and self.current and self.current["status"].get("jobDeploymentStatus") == "Running")

    def evict(self, rng: random.Random) -> None:
        """A node evicts one of the pods."""
        if self.pods:
            pod = rng.choice(self.pods)
            pod["status"]["conditions"] = [condition("DisruptionTarget", True, "PreemptionByScheduler", "preempted")]
            pod["metadata"].setdefault("deletionTimestamp", timestamp(self.now + timedelta(seconds=120)))
            pod["metadata"].setdefault("deletionGracePeriodSeconds", 120)
