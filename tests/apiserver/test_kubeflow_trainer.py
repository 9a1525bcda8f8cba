"""examples/pipelines for Kubeflow Trainer, by its own definitions, and what a run writes into a TrainJob's status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lorarl_trainer.pods.train_job import TrainJobSink
from lorarl_trainer.progress import RunFinished
from support.cluster.client import ApiError
from support.cluster.control_plane import Cluster
from support.cluster.crds import install_crds
from support.cluster.processes import find_share
from support.cluster.tools import tools_or_skip
from support.train_job_server import train_job_server
from unit.trainer.pods.test_status import CHECKPOINT, EVALUATED, JOB, STARTED, STEP

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"
RUNTIME, TRAIN_JOB = EXAMPLES / "trainer-runtime.yaml", EXAMPLES / "trainjob.yaml"


@pytest.fixture(scope="module")
def trainer(cluster: Cluster) -> Iterator[Cluster]:
    with tools_or_skip():
        folder = find_share("kubeflow-trainer") / "crds"
    names = ("clustertrainingruntimes", "trainjobs")
    install_crds(cluster, *(folder / f"trainer.kubeflow.org_{name}.yaml" for name in names))
    cluster.must("create", "--validate=strict", "-f", str(RUNTIME))
    yield cluster
    for name in names:
        cluster.api.delete("CustomResourceDefinition", f"{name}.trainer.kubeflow.org")


def test_a_field_that_kubeflow_does_not_have_is_refused(trainer: Cluster) -> None:
    """So the examples are really compared with the definitions."""
    wrong = TRAIN_JOB.read_text().replace("runtimeRef:", "runtimeReference:")
    done = trainer.kubectl("create", "--validate=strict", "-f", "-", stdin=wrong)
    assert done.returncode and 'unknown field "spec.runtimeReference"' in done.stderr


def test_a_run_reports_into_the_status_of_its_train_job(trainer: Cluster, tmp_path: Path) -> None:
    trainer.must("create", "--validate=strict", "-f", str(TRAIN_JOB))

    def apply(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        head = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}
        whole = {**head, "metadata": {"name": "sums", "namespace": "default"}, "status": body}
        try:
            return 200, trainer.api.patch("TrainJob", "sums", whole, "default", "status")
        except ApiError as error:
            return 422, {"message": str(error)}

    with train_job_server(tmp_path / "server", apply) as server:
        (sink,) = TrainJobSink.of_environment(JOB, server.environment)
        finished = RunFinished(state="succeeded", step=7, adapter_uri="a", total_seconds=1.0)
        for event in (STARTED, STEP, EVALUATED, CHECKPOINT, finished):
            sink.on_event(event)
        sink.close()
    (command,) = re.findall("-o jsonpath='(.*)'$", TRAIN_JOB.read_text(), re.M)
    status = json.loads(trainer.must("get", "trainjob", "sums", "-o", f"jsonpath={command}"))
    assert status["progressPercentage"] == 23
    assert {one["name"]: one["value"] for one in status["metrics"]} == {
        "reward": "0.5",
        "tokensPerSecond": "123.5",
        "evalScore": "0.75",
    }
    trainer.api.delete("TrainJob", "sums", "default")
