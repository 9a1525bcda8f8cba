"""`kubectl lorarl` with an API server: a job's status, the store's keys from its Secret, and its record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl import Client
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress import RunFinished
from lorarl_trainer.storage import open_store
from support.cluster.control_plane import Cluster
from support.cluster.tools import tools_or_skip
from support.records import record_run
from support.s3_server import S3Server, s3_server
from unit.contract.manifests import manifest
from unit.trainer.progress.runs import grpo_run

JOB = "recorded"
BUCKET = "team"
SPENT = {"useful": 7200, "lost": 1800, "startup": 360, "unsaved": 0}
STATUS = {
    "phase": "Failed",
    "progress": "3/8",
    "gpus": 8,
    "restarts": 1,
    "metrics": {"reward": 0.5},
    "gpuSeconds": SPENT,
    "record": f"s3://{BUCKET}/adapters/{JOB}/runs/0001",
    "conditions": [
        {
            "type": "Failed",
            "status": "True",
            "reason": "WorkerFailed",
            "message": "attempt 2 failed",
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        }
    ],
}
FAILED = RunFinished(
    state="failed", step=3, adapter_uri=None, total_seconds=1.0, reason="WorkerFailed", message="a worker failed"
)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with tools_or_skip(), s3_server() as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(scope="module")
def job(cluster: Cluster, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that failed, in a namespace without its pods, and its record."""
    store = {"spec.checkpoint.uri": f"s3://{BUCKET}/adapters", "spec.checkpoint.credentialsSecret": "s3-keys"}
    stored = manifest(store | {"metadata.name": JOB})
    cluster.must("apply", "-f", "-", stdin=json.dumps(stored))
    status = json.dumps({"status": STATUS})
    cluster.must("patch", "lrj", JOB, "--subresource=status", "--type=merge", "-p", status)
    keys = [f"--from-literal={name}={value}" for name, value in s3.secret().items()]
    cluster.must("create", "secret", "generic", "s3-keys", *keys)
    folder = tmp_path_factory.mktemp("pods")
    record_run(open_store(f"s3://{BUCKET}/adapters", s3.secret()), JOB, folder / "1", [FAILED], "the end\n", attempt=1)
    return JOB


def lorarl(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the plugin as kubectl runs it: as a program, with the user's own kubectl on the PATH."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["PATH"] = f"{Path(cluster.kubectl_path).parent}:{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "lorarl_trainer.cli.kubectl", *arguments, f"--kubeconfig={cluster.kubeconfig}"],
        capture_output=True,
        text=True,
        env=environment,
    )


def test_why_has_the_status_and_the_record(cluster: Cluster, job: str) -> None:
    done = lorarl(cluster, "why", job)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{JOB}  Failed  step 3/8\n  Failed=True  WorkerFailed: attempt 2 failed\n")
    assert f"Record  s3://{BUCKET}/adapters/{JOB}/runs" in done.stdout
    assert done.stdout.endswith("The end of logs/driver.log:\n  the end\n")


def test_logs_come_from_the_record_with_the_keys_of_the_secret(cluster: Cluster, job: str) -> None:
    assert lorarl(cluster, "logs", job, "-n", "default").stdout == "the end\n"


def test_top_lists_gpu_hours(cluster: Cluster, job: str) -> None:
    done = lorarl(cluster, "top", job)
    heading, line = done.stdout.splitlines()
    assert dict(zip(heading.split(), line.split(), strict=True)) == {
        "NAME": JOB,
        "PHASE": "Failed",
        "STEP": "3/8",
        "REWARD": "0.5",
        "EVAL": "–",
        "TOKENS/S": "–",
        "GPUS": "8",
        "USEFUL": "2.0h",
        "LOST": "0.5h",
        "STARTUP": "0.1h",
        "RESTARTS": "1",
    }
    assert f"default/{JOB}" in lorarl(cluster, "top", "-A").stdout


def test_describe_prints_the_record(cluster: Cluster, job: str) -> None:
    assert f"s3://{BUCKET}/adapters/{JOB}/runs/0001" in cluster.must("describe", "lrj", job)


def test_a_job_that_is_gone_is_an_error_that_names_the_record(cluster: Cluster) -> None:
    done = lorarl(cluster, "logs", "gone")
    assert done.returncode == 1
    assert "NotFound" in done.stderr
    assert "A job that is gone may have left its record: --record s3://.../gone" in done.stderr


def test_python_reads_the_record_as_a_run(
    cluster: Cluster, s3: S3Server, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(cluster.kubectl_path).parent}:{os.environ['PATH']}")
    store = {"spec.checkpoint.uri": f"s3://{BUCKET}/adapters", "spec.checkpoint.credentialsSecret": "s3-keys"}
    client = Client("default", kubeconfig=cluster.kubeconfig)
    trained = client.submit(manifest(store | {"metadata.name": "trained"}))
    remote = open_store(f"s3://{BUCKET}/adapters", s3.secret())
    record_run(remote, "trained", tmp_path / "1", grpo_run(tmp_path / "1"), "the end\n", attempt=1)
    assert (trained.run.state, len(trained.run.metrics)) == ("succeeded", 4)
    with pytest.raises(InputError, match="whose runs never trained"):
        _ = client.job(job).run
