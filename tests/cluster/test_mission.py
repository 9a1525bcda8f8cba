"""The project's main job on a real cluster: helm install, kubectl apply, training with Ray, a good adapter in S3.

Everything is done as a user does it, with kubectl, helm and lorarl. The observations are kept in out/cluster: `get.txt`
(kubectl get -w), `describe.txt`, and `summary.json` with the times and the accuracies.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from node.installation import STORE_KEYS, SYSTEM, forwarded, make_room
from support.cluster.kubectl import RealCluster
from support.cluster.leftovers import leftovers
from support.cluster.processes import running, until
from support.real_cluster.example import ADDITION, ROOT, note, run
from support.real_cluster.store import Bucket, bucket_of

TEAM = "team"
JOB = "addition"
ADAPTERS = f"adapters/{JOB}/"
OPERATOR = "app.kubernetes.io/component=operator"
LONGEST_SECONDS = 480
"""From apply to Succeeded, on two cores that others use too; left alone it takes a fifth of it (docs/cluster.md)."""


@dataclass
class Mission:
    """The job's life as a user sees it."""

    cluster: RealCluster
    out: Path
    began: str
    operators: dict[str, int]
    """Restarts of the operator's pods before."""
    seconds: dict[str, float] = field(default_factory=dict)

    def job(self) -> dict[str, Any]:
        """The LoRARLJob as it is."""
        job: dict[str, Any] = json.loads(self.cluster.must("get", "lorarljob", JOB, "-n", TEAM, "-o", "json"))
        return job


@pytest.fixture(scope="module")
def bucket(installed: RealCluster, out: Path) -> Iterator[Bucket]:
    """The bucket that jobs read from and write to."""
    with bucket_of(installed, out) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def base(installed: RealCluster, bucket: Bucket) -> Path:
    """The folder of the base model and its data; both are in the store as well."""
    return ADDITION.upload(bucket)


@pytest.fixture(scope="module")
def mission(installed: RealCluster, bucket: Bucket, base: Path, out: Path) -> Iterator[Mission]:
    """The example, applied and followed to its end."""
    make_room(installed, TEAM)
    bucket.clear(ADAPTERS)  # of an earlier run on this node: the job would resume from them
    mission = Mission(installed, out, datetime.now(UTC).isoformat(timespec="seconds"), operators(installed))
    for name in ("get.txt", "worker.log"):
        (out / name).unlink(missing_ok=True)
    with running([*installed.kubectl_command, "get", "lorarljobs", "-n", TEAM, "-w"], out / "get.txt"):
        started = time.monotonic()
        installed.must("apply", "-n", TEAM, "-f", str(ADDITION.file))

        def ended() -> bool:
            status = mission.job().get("status", {})
            mark(mission, started, status)
            if status.get("step") and not (out / "worker.log").exists():
                worker = ("-n", TEAM, "-l", f"lorarl.io/job={JOB},lorarl.io/role=worker", "--tail=-1")
                (out / "worker.log").write_text(installed.must("logs", *worker))
            return status.get("phase") in ("Succeeded", "Failed")

        try:
            until(LONGEST_SECONDS, "the job has ended", ended)
        finally:
            (out / "describe.txt").write_text(installed.must("describe", "lorarljob", JOB, "-n", TEAM))
            logs = (
                "-n",
                TEAM,
                "-l",
                f"lorarl.io/job={JOB},lorarl.io/role=head",
                "-c",
                "ray-job-submitter",
                "--tail=-1",
            )
            (out / "job.log").write_text(installed.kubectl("logs", *logs).stdout)
    yield mission
    installed.must("delete", "lorarljob", JOB, "-n", TEAM, "--ignore-not-found", "--wait")


def mark(mission: Mission, started: float, status: dict[str, Any]) -> None:
    """Keep when each thing was seen first, in seconds since `kubectl apply`."""
    now = time.monotonic() - started
    pods = [] if "first pod runs" in mission.seconds else mission.cluster.api.list("Pod", TEAM)
    seen = {
        "RayJob": bool(status.get("rayJobName")),
        "first pod runs": any(pod["status"]["phase"] == "Running" for pod in pods),
        "running": status.get("phase") == "Running",
        "first step": bool(status.get("step")),
        "Succeeded": status.get("phase") == "Succeeded",
    }
    for what, is_so in seen.items():
        if is_so:
            mission.seconds.setdefault(what, round(now, 1))


def test_the_job_succeeds_in_time(mission: Mission) -> None:
    status = mission.job()["status"]
    assert status["phase"] == "Succeeded", json.dumps(status, indent=1)
    assert (status["attempts"], status["preemptions"], status["restarts"]) == (0, 0, 0)
    assert status["step"] == status["totalSteps"] == 30
    assert mission.seconds["Succeeded"] <= LONGEST_SECONDS, mission.seconds


def test_kubectl_get_shows_how_it_goes(mission: Mission) -> None:
    lines = [line.split() for line in (mission.out / "get.txt").read_text().splitlines() if line.startswith(JOB)]
    phases = [phase for phase, _ in groupby(line[1] for line in lines if len(line) > 2)]
    assert phases[-3:] == ["Starting", "Running", "Succeeded"], phases
    assert set(phases[:-3]) <= {"Pending", "Starting"}, (
        phases
    )  # it may wait a moment for a node, or for a token of its account
    # NAME PHASE REASON STEP GPUS REWARD ADAPTER AGE; what is not known yet is left out.
    told = [(int(line[3].partition("/")[0]), float(line[5])) for line in lines if len(line) == 8]
    steps, rewards = zip(*told, strict=True)
    assert list(steps) == sorted(steps)
    assert len(set(steps)) >= 10
    assert rewards[-1] > rewards[0] + ADDITION.least_gain / 2


def test_the_adapter_in_the_store_does_the_task(mission: Mission, bucket: Bucket, tmp_path: Path) -> None:
    status = mission.job()["status"]
    adapter = status["adapter"]
    figures = ADDITION.accuracy(bucket, adapter, tmp_path)
    assert figures["accuracy_after"] - figures["accuracy_before"] >= ADDITION.least_gain, figures
    assert figures["accuracy_after"] == pytest.approx(status["metrics"]["evalScore"], abs=0.01)
    note(mission.out, mission={"seconds": mission.seconds, **figures, "adapter": adapter, "took": took(status)})


def test_logs_and_ray_s_dashboard_can_be_read(mission: Mission) -> None:
    text = (mission.out / "job.log").read_text()
    assert "step 30/30" in text, text[-2000:]
    of_worker = (mission.out / "worker.log").read_text()
    assert re.search(
        r"^\[worker 0\] The steps of the training are in .* container ray-job-submitter\.$", of_worker, re.M
    )
    assert re.search(r"^\[worker 0\] .*number of parameters on", of_worker, re.M), of_worker
    everything = text + of_worker + (mission.out / "describe.txt").read_text()
    assert STORE_KEYS["AWS_SECRET_ACCESS_KEY"] not in everything
    service, _, _ = mission.job()["status"]["dashboardURL"].removeprefix("http://").partition(".")
    (head,) = mission.cluster.api.list("Pod", TEAM, labels=f"lorarl.io/job={JOB},lorarl.io/role=head")
    secret = mission.cluster.api.get("Secret", head["metadata"]["labels"]["ray.io/cluster"], TEAM)
    assert secret is not None
    token = base64.b64decode(secret["data"]["auth_token"]).decode()
    with forwarded(mission.cluster, TEAM, f"service/{service}", 8265, mission.out / "forward-dashboard.log") as address:
        jobs = urllib.request.Request(f"http://{address}/api/jobs/")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(jobs, timeout=20)
        jobs.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(jobs, timeout=20) as answer:
            assert [job["status"] for job in json.load(answer) if job["type"] == "SUBMISSION"] == ["SUCCEEDED"]


def test_the_pods_write_only_to_their_volumes_and_have_a_network_policy(mission: Mission) -> None:
    cluster = mission.cluster
    (head,) = cluster.api.list("Pod", TEAM, labels=f"lorarl.io/job={JOB},lorarl.io/role=head")
    inside = ("exec", head["metadata"]["name"], "-n", TEAM, "-c", "ray-head", "--", "sh", "-c")
    said = cluster.kubectl(*inside, "touch /home/lorarl/any || touch /opt/lorarl/any || touch ~/any && echo wrote ~")
    assert said.stderr.count("Read-only file system") == 2, said.stderr
    assert said.stdout.strip() == "wrote /tmp"
    (policy,) = cluster.api.list("NetworkPolicy", TEAM)
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= head["metadata"]["labels"].items()


def test_the_operator_goes_on_without_a_stumble(mission: Mission) -> None:
    """In a pod its user has no name, which once broke kopf's watches. Restarts every 90 s hid that."""
    assert operators(mission.cluster) == mission.operators
    said = mission.cluster.must("logs", "-n", SYSTEM, "-l", OPERATOR, "--tail=-1", f"--since-time={mission.began}")
    (mission.out / "operator.log").write_text(said)
    lines = [json.loads(line) for line in said.splitlines()]
    # A warning is of what fixes itself: a request that was tried again, an API server that was slow.
    print(*(line["message"] for line in lines if line["level"] == "warning"), sep="\n")
    assert [line for line in lines if line["level"] in ("error", "critical") or "exception" in line] == []
    assert [line for line in lines if f"{TEAM}/{JOB}" in line["message"]]


@pytest.mark.long
def test_without_a_cluster_the_same_adapter_comes_out(mission: Mission, base: Path, tmp_path: Path) -> None:
    changes = {
        "model": {"uri": f"file:{base / 'base'}"},
        "data.train.uri": f"file:{base / 'train.jsonl'}",
        "data.eval.uri": f"file:{base / 'held_out.jsonl'}",
        "checkpoint": {"uri": f"file:{tmp_path / 'checkpoints'}"},
    }
    settings = [
        argument for path, value in changes.items() for argument in ("--set", f"spec.{path}={json.dumps(value)}")
    ]
    example = str(ROOT / "examples/addition-cpu.yaml")
    run([sys.executable, "-m", "lorarl_trainer.cli", "run", example, "--out", str(tmp_path / "out"), *settings])
    (newest,) = tmp_path.glob("checkpoints/addition/iter_0000030/lora_adapter/adapter_model.safetensors")
    assert hashlib.sha256(newest.read_bytes()).hexdigest() == mission.job()["status"]["adapter"]["sha256"]


def test_the_trainer_may_write_its_status_and_nothing_else(mission: Mission) -> None:
    user = f"system:serviceaccount:{TEAM}:lorarl-{JOB}"
    anybody = f"system:serviceaccount:{TEAM}:default"
    may, everybody = (rights(mission.cluster, one) for one in (user, anybody))
    assert may - everybody == {("lorarljobs.lorarl.io/status", f"[{JOB}]", "[get patch]")}


def test_a_deleted_job_leaves_its_adapters_and_nothing_else(mission: Mission, bucket: Bucket) -> None:
    cluster = mission.cluster
    cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")

    until(60, "nothing is left but the user's own Secret", lambda: leftovers(cluster.api, TEAM) == ["Secret/s3-keys"])
    assert [one for one in bucket.names(ADAPTERS) if one.endswith("adapter_model.safetensors")]


def rights(cluster: RealCluster, who: str) -> set[tuple[str, ...]]:
    """What `kubectl auth can-i --list` says: resource, names, verbs."""
    lines = cluster.must("auth", "can-i", "--list", "-n", TEAM, f"--as={who}").splitlines()[1:]
    found = (re.fullmatch(r"(\S*)\s+(\[.*?\])\s+(\[.*?\])\s+(\[.*?\])", line) for line in lines)
    return {(match[1], match[3], match[4]) for match in found if match}


def operators(cluster: RealCluster) -> dict[str, int]:
    """How often each of the operator's pods was restarted."""
    pods = [pod for pod in cluster.api.list("Pod", SYSTEM, OPERATOR) if "deletionTimestamp" not in pod["metadata"]]
    return {
        pod["metadata"]["name"]: sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
        for pod in pods
    }


def took(status: dict[str, Any]) -> float:
    """Seconds from start to completion, as the status says."""
    times = [datetime.fromisoformat(status[name]) for name in ("startTime", "completionTime")]
    return (times[1] - times[0]).total_seconds()
