"""Runs a LoRARLJob in a cluster, and measures the times of its start and the cost of a lost worker pod."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any, Self

from lorarl_trainer.progress import METRICS, read_summary
from lorarl_trainer.progress.metrics_file import SUMMARY
from side_by_side import ours
from side_by_side.start import Times, note, stages, waited_for
from side_by_side.work import Work
from support.cluster.kubectl import RealCluster
from support.real_cluster.watched import Watched, watched

OUT = "/tmp/lorarl-out"
"""The folder of a job's driver in the head's pod."""
MODELS, MODELS_VOLUME = "/mnt/lorarl-bench-models", "bench-models"
LOOK_SECONDS = 0.1
READ_SECONDS = 2.0
"""Between two reads of a run's files. Each starts kubectl, and a process in the pod."""
READS = 10
LONGEST_SECONDS = 540.0
GONE_SECONDS = 150.0

Object = dict[str, Any]


def manifest(job: Object, node: Object, name: str, models: Path, cache: Path) -> Object:
    """Return the benchmark's job as this cluster can run it.

    Args:
        job: the job as it runs bare; its model and data are in `models`.
        node: a LoRARLJob that runs in this cluster. Its `cluster` and its checkpoint's place are used.
        name: of the job.
        models: folder on the node.
        cache: folder on the node that the trainer's user may write to.
    """
    text = json.dumps(job["spec"]).replace(f"file://{models}", f"file://{MODELS}")
    spec = json.loads(text)
    spec["checkpoint"] = {**node["spec"]["checkpoint"], **{key: spec["checkpoint"][key] for key in ("every", "resume")}}
    cluster = json.loads(json.dumps(node["spec"]["cluster"])) | {"gpusPerNode": spec["cluster"]["gpusPerNode"]}
    cluster.pop("memoryPerNode", None)  # of that job, which has another model
    overrides = cluster.setdefault("podTemplateOverrides", {})
    for role in ("head", "worker"):
        pod = overrides.setdefault(role, {}).setdefault("spec", {})
        pod.setdefault("volumes", []).append({"name": MODELS_VOLUME, "hostPath": {"path": str(models)}})
        if role == "worker":
            pod["volumes"].append({"name": "cache", "hostPath": {"path": str(cache)}})
        containers = pod.setdefault("containers", [])
        container = next((one for one in containers if one["name"] == f"ray-{role}"), None)
        if container is None:
            containers.append(container := {"name": f"ray-{role}"})
        container.setdefault("volumeMounts", []).append({"name": MODELS_VOLUME, "mountPath": MODELS, "readOnly": True})
    return {**job, "metadata": {"name": name}, "spec": {**spec, "cluster": cluster, "backoffLimit": 0}}


class JobInCluster:
    """One job, applied and watched to its end. It is deleted after its block in any case, to free the GPU."""

    def __init__(self, cluster: RealCluster, namespace: str, job: Object, folder: Path) -> None:
        self.cluster, self.namespace, self.job, self.folder = cluster, namespace, job, folder
        self.name: str = job["metadata"]["name"]
        (folder / "run").mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def run(self) -> dict[str, Any]:
        """Run it to its end; return its steps, its startup and the stages of its start.

        Raises:
            ValueError: it did not succeed.
        """
        seen: Times = {}
        applied = time.time()
        self.apply()
        looked, phase = 0.0, ""
        while phase not in ("Succeeded", "Failed"):
            status = self.status()
            phase = status.get("phase", "")
            if "containers" not in seen:
                self.look(seen)
            elif time.time() - looked > READ_SECONDS:
                self.read_files()
                looked = time.time()
            if time.time() - applied > LONGEST_SECONDS:
                raise ValueError(f"{self.name} did not end within {LONGEST_SECONDS:g} s: {json.dumps(status)[:2000]}")
            time.sleep(LOOK_SECONDS)
        ended = time.time()
        if phase == "Failed":
            raise ValueError(
                f"{self.name} failed: {status.get('failure', {}).get('message') or json.dumps(status)[:2000]}"
            )
        startup = self._startup()
        return {
            "steps": ours.steps_of(self.folder, ours.work_of(self.folder, Work())),
            "startup": startup,
            "stages": stages(applied, seen, startup),
            "first_token_seconds": startup["began"] + startup["first_token_seconds"] - applied,
            "first_update_seconds": startup["began"] + startup["first_update_seconds"] - applied,
            "total_seconds": ended - applied,
        }

    def lose_a_worker(self, steps: int, *deletion: str) -> dict[str, Any]:
        """Run it, delete its worker pod within a step, and return the cost until it is a step further than before.

        The attempt continues with a new pod. Until its driver lets the old one go, a step may be under way, unless the
        options of `kubectl delete` kill it.
        """
        self.apply()
        with watched(self.cluster.api, self.namespace, self.name) as job:
            since = job.until(LONGEST_SECONDS, f"{steps} steps", lambda now: now.step >= steps)
            pod = job.pod("worker")["metadata"]["name"]
            deleted = time.monotonic(), time.time()
            self.cluster.must("delete", "pod", pod, "-n", self.namespace, "--wait=false", *deletion)
            cost = job.cost(since, deleted[0], LONGEST_SECONDS, anew=True)
            startup = self._startup_since(deleted[1], job)
            recovered = job.now.status.get("recoveries", 0)
        if not recovered:
            raise ValueError(f"{self.name} did not recover in its RayJob: {json.dumps(job.now.status)[:2000]}")
        return {
            "seconds": cost.seconds,
            "steps_lost": cost.steps_lost,
            "startup": startup,
            "first_token_seconds": startup["began"] + startup["first_token_seconds"] - deleted[1],
            "stages": {"step under way": startup["began"] - deleted[1], **waited_for(startup)},
        }

    def apply(self) -> None:
        (self.folder / f"{self.name}.json").write_text(json.dumps(self.job, indent=1))
        self.cluster.must("apply", "-n", self.namespace, "-f", str(self.folder / f"{self.name}.json"))

    def delete(self) -> None:
        """Delete it, and return when its pods have freed their GPUs."""
        self.cluster.must("delete", "lorarljob", self.name, "-n", self.namespace, "--ignore-not-found", "--wait")
        pods = ("pods", "-l", f"lorarl.io/job={self.name}", "-n", self.namespace)
        self.cluster.must("wait", "--for=delete", *pods, f"--timeout={GONE_SECONDS:g}s", seconds=2 * GONE_SECONDS)

    def status(self) -> Object:
        return (self.cluster.api.get("LoRARLJob", self.name, self.namespace) or {}).get("status", {})

    def look(self, seen: Times) -> None:
        labels = f"lorarl.io/job={self.name}"
        api = self.cluster.api
        note(seen, time.time(), api.list("RayJob", self.namespace, labels), api.list("Pod", self.namespace, labels))

    def read_files(self) -> None:
        """Copy the run's files, which are deleted with the head's pod."""
        labels = f"lorarl.io/job={self.name},lorarl.io/role=head"
        pods = [
            pod
            for pod in self.cluster.api.list("Pod", self.namespace, labels)
            if "deletionTimestamp" not in pod["metadata"]
        ]
        for pod in pods[-1:]:
            for file in (METRICS, SUMMARY):
                name = pod["metadata"]["name"]
                done = self.cluster.kubectl(
                    "exec", "-n", self.namespace, name, "-c", "ray-head", "--", "cat", f"{OUT}/{file}"
                )
                if done.returncode == 0:
                    (self.folder / "run" / file).write_text(done.stdout)

    def _startup(self) -> Object:
        """Return the startup of the run whose files were read last.

        Raises:
            ValueError: they were read before its first update, or not at all.
        """
        summary = read_summary(self.folder / "run") if (self.folder / "run" / SUMMARY).exists() else {}
        startup: Object | None = summary.get("startup")
        if startup is None:
            raise ValueError(f"{self.name} ended before its start could be read. Give it more --steps.")
        return startup

    def _startup_since(self, when: float, job: Watched) -> Object:
        """Return the startup of the workers that came after a Unix time. They have made a step, so it is soon there."""
        for _ in range(READS):
            self.read_files()
            with contextlib.suppress(ValueError):
                if (startup := self._startup())["began"] > when:
                    return startup
            if job.ended:
                break
        raise ValueError(f"{self.name} has not recorded how its new workers started")
