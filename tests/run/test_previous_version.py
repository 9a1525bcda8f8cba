"""The trainer of the version before, with what today's API server and operator make of a manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lorarl_operator.decide import parse
from lorarl_operator.manifests.config import config_map
from run.jobs import NAME, STEPS, Job
from support.cluster.control_plane import control_plane
from support.cluster.crds import CRD, install_crds
from support.cluster.tools import tools_or_skip
from support.previous_version import previous_version, python_path

pytestmark = pytest.mark.long


def test_it_trains_a_job_that_keeps_its_image_after_an_upgrade(base: Path, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", base)
    path = job.folder / "job.yaml"
    manifest = yaml.safe_load(path.read_text())
    # The operator refuses checkpoints in a pod's own folder, unless a volume may be mounted there.
    volumes = {"podTemplateOverrides": {"head": {"spec": {}}, "worker": {"spec": {}}}}
    servers = tmp_path / "servers"
    servers.mkdir()
    with tools_or_skip(), control_plane(servers) as cluster:
        install_crds(cluster, CRD)
        applied = {**manifest, "spec": {**manifest["spec"], "cluster": volumes}}
        cluster.must("apply", "-f", "-", stdin=json.dumps(applied))
        stored = json.loads(cluster.must("get", "lrj", NAME, "-o", "json"))
    path.write_text(config_map(parse.job(stored))["data"]["job.yaml"])
    with previous_version(tmp_path / "previous") as tree:
        job.environment["PYTHONPATH"] = python_path(tree)
        ended = job.run()
    assert ended.code == 0, ended
    assert ended.summary["step"] == STEPS
    assert (job.checkpoints / f"iter_{STEPS:07}" / "lora_adapter" / "adapter_model.safetensors").exists()
