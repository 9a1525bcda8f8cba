"""A tiny in-memory API server that carries decisions out, with KubeRay and a queue beside it."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

from lorarl_operator.control.cache import with_last_end
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import (
    AddFinalizer,
    Apply,
    Create,
    Decision,
    Delete,
    DeleteJob,
    DeletePod,
    Event,
    RemoveFinalizer,
    Want,
)
from lorarl_operator.decide.models import (
    FINALIZER,
    LABEL_ATTEMPT,
    LABEL_ROLE,
    RETRYING,
    Evidence,
    Observed,
    RayJob,
    Refusal,
    Workload,
)
from lorarl_operator.decide.outcome import HEAD_GONE
from lorarl_operator.decide.status import FIELDS, timestamp
from unit.operator.observed_world import SETTINGS, START, Raw, condition, observed, raw_job, raw_pod, steps_of


class World:
    """Objects of one job, changed by a test, with an operator that may be killed between any two of its writes."""

    def __init__(
        self, spec: Raw | None = None, labels: dict[str, str] | None = None, *, recovers: bool = False
    ) -> None:
        self.now = START
        self.recovers = recovers
        """Whether the trainer can continue with other workers."""
        self.job: Raw | None = raw_job(spec, labels=labels or {})
        self.older_job = copy.deepcopy(self.job)
        self.ray_jobs: dict[str, Raw] = {}
        self.pods: list[Raw] = []
        self.cleanup: Raw | None = None
        self.budget: Raw | None = None
        self.cordoned = False
        """Whether the node of all pods takes no new ones."""
        self.refusal: Refusal | None = None
        self.known: dict[str, RayJob] = {}
        """What the operator has seen of the RayJobs, until it is killed."""
        self.events: list[Event] = []
        self.applied: list[Raw] = []
        self.writes = 0
        self.made = 0
        self.steps: dict[str, int] = {}
        """By RayJob, the steps that its training does: it sees no change."""
        self.failures: set[int] = set()
        self.workloads: dict[str, Raw] = {}
        """Kueue's Workloads by the uid of their RayJob."""
        self.lost: set[tuple[str, str, int]] = set()
        """What someone took away: a RayJob's uid, its cluster, and how often it had been started again before."""
        self.replaced = 0
        self.plain_failures: set[int] = set()
        """Failures that nothing else can have caused."""

    # ---- the API server

    def look(self, *, stale_job: bool = False) -> Observed:
        job = self.older_job if stale_job else self.job
        assert job is not None
        cleanup = parse.cleanup_job(self.cleanup) if self.cleanup else None
        parsed = {"cleanup": cleanup, "budget": self.budget and parse.budget(self.budget)}
        seen = observed(job, *self.ray_jobs.values(), pods=self.pods, refusal=self.refusal, **parsed)
        ray_jobs = tuple(with_last_end(each, self.known.get(each.name)) for each in seen.ray_jobs)
        self.known = {each.name: each for each in ray_jobs}
        return replace(seen, ray_jobs=ray_jobs)

    def carry_out(self, decision: Decision, seen: Observed, killed_after: int | None = None) -> None:
        """Carry a decision out.

        The operator dies after `killed_after` writes. A conflict stops it, like the controller.
        """
        steps: list[Any] = [*decision.prepare]
        if decision.status is not None:
            steps.append(decision.status)
        steps += decision.actions
        for number, step in enumerate(steps):
            if number == killed_after:
                self.known = {}
                return
            if self.job is None or not self._write(step, seen):
                return
            if isinstance(step, dict):
                self.events += decision.events
        if decision.status is None:
            self.events += decision.events

    def step(self, killed_after: int | None = None, *, stale_job: bool = False) -> Decision:
        """Observe, decide and carry out once."""
        seen = self.look(stale_job=stale_job)
        decision = decide(seen, self.now, SETTINGS)
        if decision.wants_evidence not in (None, Want.EVENTS):
            cordoned = frozenset(["node-1"] if self.cordoned else [])
            evidence = Evidence(workload=self._workload(), cordoned=cordoned)
            decision = decide(replace(seen, evidence=evidence), self.now, SETTINGS)
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
            case Delete(kind, name, uid):
                self._delete_same(kind, name, uid)
            case DeletePod():
                self._delete_pod(step)
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

    def _delete_same(self, kind: str, name: str, uid: str) -> None:
        self.budget = None if kind == "PodDisruptionBudget" else self.budget
        if name in self.ray_jobs and self.ray_jobs[name]["metadata"]["uid"] == uid:
            self.delete_ray_job(name)

    def _delete_pod(self, step: DeletePod) -> None:
        for pod in [pod for pod in self.pods if pod["metadata"]["uid"] == step.uid]:
            self.ask_to_go(pod)
            self.pods = [one for one in self.pods if one is not pod or not step.at_once]

    def _release(self) -> None:
        self.job["metadata"]["finalizers"] = []
        if "deletionTimestamp" in self.job["metadata"]:
            self.job, self.budget = None, None
        else:
            self.touch()

    def _create(self, manifest: Raw, seen: Observed) -> bool:
        if manifest["kind"] == "PodDisruptionBudget":
            self.budget = {"metadata": manifest["metadata"] | {"uid": "budget", "resourceVersion": "1"}}
            return True
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
        spec = {"suspend": queued, "backoffLimit": manifest["spec"]["backoffLimit"]}
        self.ray_jobs[name] = {"metadata": about, "spec": spec, "status": status}
        if queued:
            self.workloads[about["uid"]] = {"metadata": {"name": f"rayjob-{name}"}, "spec": {"active": True}}
        live = [each for each in self.ray_jobs.values() if "deletionTimestamp" not in each["metadata"]]
        assert len(live) == 1, f"two live RayJobs: {[each['metadata']['name'] for each in live]}"
        return True

    def _workload(self) -> Workload:
        uids = [each["metadata"]["uid"] for each in self.ray_jobs.values()]
        found = [self.workloads[uid] for uid in uids if uid in self.workloads]
        return parse.workload(found[0]) if found else Workload("", ())

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
            self.job, self.ray_jobs, self.pods, self.budget = None, {}, [], None

    def delete_ray_job(self, name: str) -> None:
        """By anyone: the pods get their grace period."""
        about = self.ray_jobs[name]["metadata"]
        about.setdefault("deletionTimestamp", timestamp(self.now))
        for pod in self.pods:
            self.ask_to_go(pod)

    def ask_to_go(self, pod: Raw) -> None:
        pod["metadata"].setdefault("deletionTimestamp", timestamp(self.now + timedelta(seconds=120)))
        pod["metadata"].setdefault("deletionGracePeriodSeconds", 120)

    def collect(self) -> None:
        """KubeRay and the garbage collector finish all deletions, and KubeRay sees what is left."""
        self.ray_jobs = {
            name: each for name, each in self.ray_jobs.items() if "deletionTimestamp" not in each["metadata"]
        }
        self.pods = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]
        if self.current and self.current["status"].get("jobDeploymentStatus") == RETRYING:
            number, kept = self.current["status"]["failed"], self.current["status"]["startTime"]
            cluster = f"{self.current['metadata']['uid']}-{number}"
            self.current["status"] = {"failed": number, "rayClusterName": cluster, "startTime": kept}
        roles = {_role(pod) for pod in self.pods}
        if self._at_work() and "head" not in roles:
            self.kuberay_failed(message=HEAD_GONE)

    def kuberay(self, **status: Any) -> None:
        """KubeRay writes the status of the live RayJob."""
        if self.current:
            self.current["status"] |= status

    def kuberay_failed(self, **status: Any) -> None:
        """KubeRay sees a failure, and starts the RayJob again if it may."""
        failed = self.current["status"].get("failed", 0) + 1
        self.kuberay(**status, reason="AppFailed", failed=failed)
        if failed > self.current["spec"].get("backoffLimit", 0):
            self.kuberay(jobDeploymentStatus="Failed", endTime=timestamp(self.now))
            return
        self.kuberay(jobDeploymentStatus=RETRYING)
        self.current["metadata"]["managedFields"] = [{"subresource": "status", "time": timestamp(self.now)}]
        for pod in self.pods:
            self.ask_to_go(pod)

    def bring_up(self) -> None:
        """The RayCluster is up and its driver runs."""
        ray_job = self.current
        if (
            ray_job is None
            or ray_job["status"].get("jobDeploymentStatus") in ("Complete", "Failed", RETRYING)
            or ray_job["spec"]["suspend"]
        ):
            return
        attempt, cluster = int(ray_job["metadata"]["labels"][LABEL_ATTEMPT]), ray_job["status"]["rayClusterName"]
        if not any(pod["metadata"]["labels"]["ray.io/cluster"] == cluster for pod in self.pods):
            for role in ("head", "worker"):
                self._add_pod(role, attempt, cluster)
        self.kuberay(
            jobDeploymentStatus="Running",
            jobStatus="RUNNING",
            dashboardURL="demo-head:8265",
            startTime=timestamp(self.now),
        )
        self._report_workers(attempt, cluster)

    def _add_pod(self, role: str, attempt: int, cluster: str) -> None:
        self.made += 1
        pod = raw_pod(role, attempt, name=f"demo-{attempt}-{role}-{self.made}", conditions=[condition("Ready", True)])
        pod["metadata"]["uid"] = f"pod-{self.made}"
        pod["metadata"]["labels"]["ray.io/cluster"] = cluster
        self.pods.append(pod)

    def _report_workers(self, attempt: int, cluster: str) -> None:
        """The trainer names the pods that it trains with, if it can continue with others."""
        if self.recovers:
            names = [pod["metadata"]["name"] for pod in self.here(cluster) if _role(pod) == "worker"]
            self.touch(self.job["status"] | {"workers": {"attempt": attempt, "pods": names}})

    def here(self, cluster: str) -> list[Raw]:
        """Pods of a cluster that are not being deleted."""
        return [
            pod
            for pod in self.pods
            if pod["metadata"]["labels"]["ray.io/cluster"] == cluster and "deletionTimestamp" not in pod["metadata"]
        ]

    def replace_workers(self) -> None:
        """KubeRay replaces a lost worker, and the trainer continues with the new one."""
        if not (self._at_work() and self.recovers) or self.current["spec"]["suspend"]:
            return
        attempt, cluster = self._attempt(), self.current["status"]["rayClusterName"]
        if {_role(pod) for pod in self.here(cluster)} == {"head"}:
            self._add_pod("worker", attempt, cluster)
            self._report_workers(attempt, cluster)
            self.replaced += 1

    def _attempt(self) -> int:
        return int(self.current["metadata"]["labels"][LABEL_ATTEMPT])

    def lose(self) -> None:
        """Someone takes something of the live RayJob away. All that it loses until it starts again is one loss."""
        if self.current:
            again = self.replaced + self.job["status"].get("restartsInPlace", 0)
            self.lost.add((self.current["metadata"]["uid"], self.current["status"].get("rayClusterName", ""), again))

    def succeed(self) -> None:
        """The trainer finishes its steps and reports that."""
        if self._at_work():
            steps = self.steps[self.current["metadata"]["name"]]
            if self.current["status"].get("failed", 0) > self.job["status"].get("restartsInPlace", 0):
                # KubeRay has started it again before the operator looked: the attempt ends well.
                self.plain_failures.discard(int(self.current["metadata"]["labels"][LABEL_ATTEMPT]))
            self.touch(self.job["status"] | {"step": steps, "totalSteps": steps})
            self.kuberay(jobDeploymentStatus="Complete", jobStatus="SUCCEEDED", endTime=timestamp(self.now))

    def fail(self) -> None:
        """The trainer fails by its own fault and reports that."""
        if not self._at_work():
            return
        attempt = int(self.current["metadata"]["labels"][LABEL_ATTEMPT])
        self.touch(
            self.job["status"]
            | {
                "failure": {
                    "reason": "OutOfMemory",
                    "message": "too large",
                    "attempt": attempt,
                    "time": timestamp(self.now),
                }
            }
        )
        self.failures.add(attempt)
        if self.phase in ("Starting", "Running") and not any(
            "deletionTimestamp" in pod["metadata"] for pod in self.pods
        ):
            self.plain_failures.add(attempt)
        self.kuberay_failed()
        self.now += timedelta(seconds=1)

    def _at_work(self) -> bool:
        return bool(self.job and self.current and self.current["status"].get("jobDeploymentStatus") == "Running")

    def behead(self) -> None:
        """Someone deletes the head at once, which KubeRay sees first."""
        if self._at_work() and self.current["spec"]["backoffLimit"]:
            self.pods = [pod for pod in self.pods if _role(pod) != "head"]
            self.lose()
            self.kuberay_failed(message=HEAD_GONE)

    def evict(self, rng: random.Random) -> None:
        """A node evicts one of the pods. No budget keeps it from that."""
        staying = [pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"]]
        if staying:
            self.lose()
            pod = rng.choice(staying)
            pod["status"]["conditions"] = [condition("DisruptionTarget", True, "PreemptionByScheduler", "preempted")]
            self.ask_to_go(pod)


def _role(pod: Raw) -> str:
    return str(pod["metadata"]["labels"][LABEL_ROLE])
