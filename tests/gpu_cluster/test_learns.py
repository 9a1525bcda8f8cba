"""What the project was made for: `kubectl apply` on a GPU node, and an adapter in the store that does the task.

All GPUs of the node are in one worker pod; with two, training is data parallel. What a user typed and read is kept in
transcript.txt.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpu_cluster.ground import Ground
from gpu_cluster.transcript import Transcript
from gpu_node.arrival import GPU
from node.installation import make_room
from support.cluster.client import Object
from support.cluster.processes import running
from support.real_cluster import example
from support.real_cluster.example import ROOT
from support.real_cluster.store import Bucket
from support.real_cluster.watched import Seen, watched

TEAM = "team"
LONGEST_SECONDS = 400.0
SAME = 0.02
"""Of one adapter, by three programs on two kinds of machine."""
VLLM = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Learnt:
    """The job when it has ended, and its worker and head pod as they were."""

    name: str
    history: list[Seen]
    head: Object
    worker: Object
    devices: dict[str, int]
    """role -> how many GPUs' device files its pod has."""

    @property
    def status(self) -> Object:
        return self.history[-1].status

    def seconds_until(self, is_so: Callable[[Seen], bool]) -> float:
        """From `kubectl apply` until the status said so first."""
        return round(next(seen.at for seen in self.history if is_so(seen)) - self.history[0].at, 1)


@pytest.fixture(scope="module")
def learnt(ground: Ground, bucket: Bucket) -> Iterator[Learnt]:
    """The example, applied by a user's own commands and followed to its end."""
    name = f"{ground.example.prefix}-{ground.gpus}"
    cluster, user = ground.cluster, Transcript(ground.cluster, ground.out / "transcript.txt")
    make_room(cluster, TEAM, level="privileged" if ground.mounted else "baseline")
    bucket.clear(f"adapters/{name}/")
    manifest = ground.out / f"{name}.yaml"
    manifest.write_text(yaml.safe_dump(ground.manifest(name), sort_keys=False))
    user.kubectl(
        "get",
        "nodes",
        "-o",
        f"custom-columns=NAME:.metadata.name,GPUS:.status.allocatable.{GPU.replace('.', chr(92) + '.')}",
    )
    get_file = ground.out / "get.txt"
    get_file.unlink(missing_ok=True)
    with running([*cluster.kubectl_command, "get", "lrj", "-n", TEAM, "-w"], get_file):
        user.kubectl("apply", "-n", TEAM, "-f", str(manifest))
        with watched(cluster.api, TEAM, name) as job:
            job.until(LONGEST_SECONDS, "a step", lambda seen: seen.step > 0)
            user.kubectl("get", "pods", "-n", TEAM, "-o", "wide")
            head, worker = job.pod("head"), job.pod("worker")
            devices = {role: count_devices(ground, pod) for role, pod in (("head", head), ("worker", worker))}
            try:
                job.until(LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded")
            finally:
                user.add(f"kubectl get lrj -n {TEAM} -w", get_file.read_text())
                user.kubectl("describe", "lrj", name, "-n", TEAM)
    yield Learnt(name, job.history, head, worker, devices)
    cluster.must("delete", "lrj", name, "-n", TEAM, "--wait")


def count_devices(ground: Ground, pod: Object) -> int:
    """How many GPUs a program in the pod's Ray container can open."""
    container = pod["spec"]["containers"][0]["name"]
    listed = ground.cluster.must("exec", pod["metadata"]["name"], "-n", TEAM, "-c", container, "--", "ls", "/dev")
    return sum(name.removeprefix("nvidia").isdigit() for name in listed.split() if name.startswith("nvidia"))


def test_it_succeeds_and_says_how_it_went(learnt: Learnt, ground: Ground) -> None:
    status = learnt.status
    assert (status["attempts"], status["preemptions"]) == (0, 0)
    assert status["step"] == status["totalSteps"] == status["adapter"]["step"]
    seconds = {
        "running": learnt.seconds_until(lambda seen: seen.status.get("phase") == "Running"),
        "first step": learnt.seconds_until(lambda seen: seen.step > 0),
        "Succeeded": learnt.seconds_until(lambda seen: seen.status.get("phase") == "Succeeded"),
    }
    print(seconds, status["metrics"])
    example.note(ground.out, gpus=ground.gpus, learnt={"seconds": seconds, "metrics": status["metrics"]})


def test_one_worker_pod_has_all_gpus_and_the_head_has_none(learnt: Learnt, ground: Ground) -> None:
    assert learnt.devices == {"head": 0, "worker": ground.gpus}
    limits = learnt.worker["spec"]["containers"][0]["resources"].get("limits", {})
    assert limits.get(GPU, "0") == str(ground.gpus)
    assert GPU not in str(learnt.head["spec"]["containers"][0]["resources"])
    (shared,) = [one for one in learnt.worker["spec"]["volumes"] if one["name"] == "shared-mem"]
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_the_gpus_are_as_they_were(learnt: Learnt, ground: Ground) -> None:
    ground.gpus_are_free()


def test_the_adapter_does_the_task_wherever_it_is_loaded(
    learnt: Learnt, ground: Ground, bucket: Bucket, tmp_path: Path
) -> None:
    """By transformers and PEFT on the CPU, and by a fresh vLLM on the GPU, beside each other."""
    folder, adapter = ground.example.folder, learnt.status["adapter"]
    served = bucket.download(adapter["uri"], tmp_path / "served")
    serve = [
        sys.executable,
        str(ROOT / "tests/gpu_cluster/serve.py"),
        str(folder / "base"),
        str(served),
        str(folder / "held_out.jsonl"),
    ]
    with ThreadPoolExecutor() as pool:
        by_vllm = pool.submit(example.run, serve, VLLM)
        figures = ground.example.accuracy(bucket, adapter, tmp_path) | json.loads(by_vllm.result().splitlines()[-1])
    print(figures)
    example.note(ground.out, accuracy=figures)
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ground.example.least_gain
    said = learnt.status["metrics"]["evalScore"]
    assert figures["accuracy_after"] == pytest.approx(said, abs=SAME)
    assert figures["accuracy_vllm"] == pytest.approx(said, abs=SAME)
    ground.gpus_are_free()
