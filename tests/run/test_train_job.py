"""A TrainJob's pods: the command of the runtime in examples/pipelines trains, reports, and resumes in a new pod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.train_job_server import TrainJobServer, train_job_server

ROOT = Path(__file__).parents[2]
RUNTIME = yaml.safe_load((ROOT / "examples/pipelines/trainer-runtime.yaml").read_text())
SMOKE = yaml.safe_load((ROOT / "examples/smoke-cluster-cpu.yaml").read_text())
SECONDS = 400.0


def pod(folder: Path, server: TrainJobServer, manifest: dict[str, Any]) -> list[int]:
    """Run the container's command in an empty folder; the percentages that it reported."""
    (node,) = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    folder.mkdir()
    programs = folder.with_name("bin")
    programs.mkdir(exist_ok=True)
    program = programs / "lorarl"
    program.write_text(f'#!/bin/bash\nexec {sys.executable} -m lorarl_trainer.cli "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        **server.environment,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LORARL_MANIFEST": yaml.safe_dump(manifest),
    }
    ran = subprocess.run(
        container["command"], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 0 and "TrainJob" not in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
    arrived = [server.arrived.get_nowait()[1] for _ in range(server.arrived.qsize())]
    return [body["trainerStatus"]["progressPercentage"] for body in arrived]


@pytest.mark.long
def test_a_train_job_reports_its_progress_and_resumes_in_its_next_pod(tmp_path: Path) -> None:
    spec = {name: part for name, part in SMOKE["spec"].items() if name != "cluster"}
    spec |= {
        "model": {"uri": f"file:{ROOT}/examples/smoke"},
        "data": {**spec["data"], "train": {**spec["data"]["train"], "uri": f"file:{ROOT}/examples/smoke/train.jsonl"}},
        "checkpoint": {"uri": f"file:{tmp_path}/store"},
    }
    manifest = {**SMOKE, "spec": spec}
    with train_job_server(tmp_path / "server") as server:
        spec["trainer"] = {**spec["trainer"], "steps": 2}
        first = pod(tmp_path / "pod-1", server, manifest)
        assert first[0] == 0 and first[-1] == 100
        spec["trainer"]["steps"] = 4
        second = pod(tmp_path / "pod-2", server, manifest)
        assert second[0] == 50 and second[-1] == 100
