"""The cluster's part of bench_gpu_cluster.py, on a cluster that is played: each look shows it a little later."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from side_by_side import cluster_report, ours, pods
from side_by_side.work import Work

ROOT = Path(__file__).parents[3]
MODELS, CACHE = Path("/models/bench"), Path("/compiled")
STEP = {"response_tokens_mean": 8.0, "mean_abs_logprob_diff": 0.001, "tokens": 100}


def job(name: str = "bench-7b") -> dict[str, Any]:
    node = yaml.safe_load((ROOT / "examples/addition-cluster-cpu.yaml").read_text())
    bare = ours.manifest(MODELS / "7b", Path("/out"), Work(), 1, 2) | {}
    bare["spec"]["reward"] = {"type": "exact"}
    return pods.manifest(bare, node, name, MODELS, CACHE)


def loaded(manifest: dict[str, Any], folder: Path) -> LoRARLJob:
    (folder / "job.json").write_text(json.dumps(manifest))
    return load_job(folder / "job.json", [])


def test_the_job_is_the_cluster_s_own_with_the_benchmark_s_work(tmp_path: Path) -> None:
    spec = loaded(job(), tmp_path).spec
    assert spec.model.uri == "file:///mnt/lorarl-bench-models/7b"
    assert spec.data.train.uri == "file:///mnt/lorarl-bench-models/7b/prompts-64.jsonl"
    assert (spec.checkpoint.uri, spec.checkpoint.credentials_secret) == ("s3://lorarl/adapters", "s3-keys")
    assert (spec.checkpoint.every, spec.checkpoint.resume, spec.cluster.gpus_per_node) == (100_000, "Never", 1)
    assert spec.cluster.memory_per_node is None, "a limit for another model"
    worker, head = spec.cluster.pod_template_overrides.worker, spec.cluster.pod_template_overrides.head
    assert worker and head and worker.spec and head.spec
    models = {"name": "bench-models", "hostPath": {"path": "/models/bench"}}
    assert head.spec["volumes"] == [models]
    assert worker.spec["volumes"] == [models, {"name": "cache", "hostPath": {"path": "/compiled"}}]
    mount = {"name": "bench-models", "mountPath": "/mnt/lorarl-bench-models", "readOnly": True}
    assert worker.spec["containers"] == [{"name": "ray-worker", "volumeMounts": [mount]}]


def test_overrides_that_the_cluster_needs_are_kept() -> None:
    container = {"name": "ray-worker", "volumeMounts": [{"name": "stack", "mountPath": "/opt"}]}
    overrides = {"worker": {"spec": {"containers": [container], "volumes": [{"name": "stack"}]}}}
    node = {"spec": {"checkpoint": {"uri": "s3://b/a"}, "cluster": {"podTemplateOverrides": overrides}}}
    made = pods.manifest(ours.manifest(MODELS / "7b", Path("/out"), Work(), 1, 2), node, "b", MODELS, CACHE)
    worker = made["spec"]["cluster"]["podTemplateOverrides"]["worker"]["spec"]
    assert [volume["name"] for volume in worker["volumes"]] == ["stack", "bench-models", "cache"]
    assert [mount["mountPath"] for mount in worker["containers"][0]["volumeMounts"]] == [
        "/opt",
        "/mnt/lorarl-bench-models",
    ]
    assert len(node["spec"]["cluster"]["podTemplateOverrides"]["worker"]["spec"]["volumes"]) == 1, (
        "the given manifest is left alone"
    )


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Cluster:
    """A job that a clock moves: what its objects and files show from when on, seconds after it was applied."""

    clock: Clock
    manifest: dict[str, Any] | None = None
    applied: float = 0.0
    commands: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def api(self) -> Cluster:
        return self

    @property
    def age(self) -> float:
        return self.clock.now - self.applied

    def must(self, *arguments: str, seconds: float = 60) -> str:
        self.commands.append(arguments)
        if arguments[0] == "apply":
            self.manifest, self.applied = json.loads(Path(arguments[-1]).read_text()), self.clock.now
        return ""

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        phase = "Starting" if self.age < 30 else "Running" if self.age < 100 else "Succeeded"
        return {"status": {"phase": phase}}

    def list(self, kind: str, namespace: str, labels: str) -> list[dict[str, Any]]:
        if kind == "RayJob":
            return [{}] if self.age > 0.5 else []
        if self.age < 2:
            return []
        state = {"running": {}} if self.age > 8 else {"waiting": {}}
        return [
            {
                "metadata": {"name": f"{role}-pod", "labels": {"lorarl.io/role": role}},
                "spec": {"nodeName": "gpu"} if self.age > 3 else {},
                "status": {"containerStatuses": [{"name": f"ray-{role}", "state": state}]},
            }
            for role in ("head", "worker")
        ]

    def kubectl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Only `exec ... cat FILE` is asked for."""
        self.clock.sleep(0.5)
        file = Path(arguments[-1]).name
        made = [number for number in (1, 2, 3) if self.age > 60 + 10 * number]
        if self.age < 25 or self.age > 98:
            return subprocess.CompletedProcess(arguments, 1, "", "no such file")
        if file == "metrics.jsonl":
            rows = [
                {"step": number, "seconds": {"generate": 4.0, "other": 6.0, "checkpoint": 9.0 * (number == 3)}, **STEP}
                for number in made
            ]
            return subprocess.CompletedProcess(arguments, 0, "".join(json.dumps(row) + "\n" for row in rows), "")
        assert self.manifest
        parts = [
            ("process", "driver", 0.0, 2.0),
            ("engine", "worker 0", 3.0, 35.0),
            ("first generation/first token", "worker 0", 38.0, 1.0),
        ]
        startup = {
            "began": self.applied + 20,
            "first_token_seconds": 39.0,
            "first_update_seconds": 45.0,
            "parts": [dict(zip(("name", "who", "begin", "seconds"), part, strict=True)) for part in parts],
        }
        summary = {"manifest": yaml.safe_dump(self.manifest), "startup": startup if made else None}
        return subprocess.CompletedProcess(arguments, 0, json.dumps(summary), "")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    clock = Clock()
    monkeypatch.setattr(pods.time, "sleep", clock.sleep)
    monkeypatch.setattr(pods.time, "time", lambda: clock.now)
    return Cluster(clock)


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Callable[[], dict[str, Any]]:
    whole = loaded(job(), tmp_path).model_dump(by_alias=True, mode="json")

    def run() -> dict[str, Any]:
        with pods.JobInCluster(cluster, "team", whole, tmp_path) as running:  # type: ignore[arg-type]
            return running.run()

    return run


def test_a_job_is_followed_from_apply_to_its_end(cluster: Cluster, run: Callable[[], dict[str, Any]]) -> None:
    found = run()
    assert [command[0] for command in cluster.commands] == ["apply", "delete", "wait"]
    assert [step["seconds"] for step in found["steps"]] == [10.0, 10.0, 10.0], "a checkpoint is left out"
    stages = found["stages"]
    assert sum(stages.values()) == pytest.approx(found["first_token_seconds"]) == pytest.approx(59.0)
    before = {"operator": 0.6, "KubeRay": 1.4, "scheduling": 1.1, "containers": 5.0, "Ray up, job submitted": 11.9}
    assert {name: pytest.approx(seconds, abs=0.11) for name, seconds in before.items()}.items() <= stages.items()
    assert (stages["engine"], stages["first token"], stages["other"]) == (35.0, 1.0, 1.0)


def test_the_tables_show_what_was_measured_beside_its_target(run: Callable[[], dict[str, Any]]) -> None:
    pods_run = {"part": "pods", "size": "7b", "caches": "warm", **run()}
    bare = {**pods_run, "part": "bare", "stages": {"command": 0.1, "engine": 35.0}, "first_token_seconds": 35.1}
    lost = {**pods_run, "part": "lost", "seconds": 95.0, "steps_lost": 1, "date": "2026-11-26"}
    killed = {**lost, "part": "killed", "seconds": 42.0, "steps_lost": 0}
    result = {"date": "2026-11-22", "machine": {"gpus": []}, "runs": [pods_run, bare, lost, killed]}
    text = cluster_report.markdown(result, Path("benchmarks/results/gpu-cluster.json"))
    assert "| a step in pods over the same bare, 7B | 1.01 | 1.000 (10.00 s over 10.00 s) |" in text
    assert "| apply to the first token, 7B, caches warm | 90 s | 59 s |" in text
    assert "| a deleted worker pod, 7B, to the first token | 35 s | 59 s (missed) |" in text
    assert "| a deleted worker pod, 7B, to a step further than before | 50 s, 0 lost | 95 s, 1 lost (missed) |" in text
    assert "| a killed worker pod, 7B, to a step further than before | 50 s, 0 lost | 42 s, 0 lost |" in text
    losses = "7B after a worker was deleted, 2026-11-26 | 7B after a worker was killed, 2026-11-26"
    assert f"| | 7B bare, warm | 7B pods, warm | {losses} |" in text
    assert "| **first token** | **35.1** | **59.0** | **59.0** | **59.0** |" in text


def test_a_document_without_a_place_for_the_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "doc.md").write_text("# Nothing\n")
    with pytest.raises(ValueError, match="lacks the lines between which the figures go"):
        cluster_report.render({"runs": []}, tmp_path / "doc.md", Path("x.json"))
