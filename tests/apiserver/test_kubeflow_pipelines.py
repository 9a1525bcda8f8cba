"""The pipeline in examples/pipelines, run by kfp with the rights of kubeflow-rights.yaml alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from lorarl_trainer.install.install import installer
from support.cluster.audit import Right, account, granted, refused, used
from support.cluster.lorarljobs import lorarljob, report
from support.cluster.operator import Operator
from support.cluster.platform import Platform
from support.cluster.processes import until
from support.kfp import PYTHON, REQUIREMENT, VARIABLE, needs_kfp

ROOT = Path(__file__).parents[2]
RIGHTS = ROOT / "examples/pipelines/kubeflow-rights.yaml"
ACCOUNT = "pipeline-runner"
HELD_OUT = {"uri": "s3://team/held_out.jsonl", "promptField": "prompt", "answerField": "answer"}
DATA = {**lorarljob("", "")["spec"]["data"], "eval": HELD_OUT}
TRAINED = {"adapter": "s3://team/adapters/x/iter_4/lora_adapter", "sha256": "ab" * 32, "score": 0.8125}
PATIENCE = 120.0
LOOKS = Right("", "namespaces", "get")
"""`kubectl apply` looks whether the namespace of a new object is there, and does without if it may not."""


class Kubeflow:
    """A namespace with Kubeflow's account, in which pipelines run."""

    def __init__(self, p: Platform, folder: Path) -> None:
        self.p, self.folder, self.namespace = p, folder, p.namespace("kfp")
        about = {"name": ACCOUNT, "namespace": self.namespace}
        p.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
        p.cluster.must("apply", "-n", self.namespace, "-f", str(RIGHTS))
        path = p.cluster.write_kubeconfig(
            f"kfp-{self.namespace}", p.cluster.service_account_token(self.namespace, ACCOUNT)
        )
        config = json.loads(path.read_text())
        config["contexts"][0]["context"]["namespace"] = self.namespace
        (folder / "kubeconfig").write_text(json.dumps(config))
        self.manifest = folder / "job.yaml"
        self.running: list[subprocess.Popen[str]] = []

    def run(self, job: dict[str, object], *name: str) -> subprocess.Popen[str]:
        """Start the pipeline, or with a name its component, as a process."""
        self.manifest.write_text(yaml.safe_dump(job))
        paths = [str(ROOT / folder) for folder in ("crds", "trainer_image")]
        environment = os.environ | {
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": f"{Path(self.p.cluster.kubectl_path).parent}{os.pathsep}{os.environ['PATH']}",
        }
        log = self.folder / f"run-{len(self.running)}.log"
        with log.open("w") as output:
            started = subprocess.Popen(
                [PYTHON, str(ROOT / "tests/apiserver/run_pipeline.py"), str(self.manifest), *name],
                cwd=self.folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.running.append(started)
        return started

    def said(self) -> str:
        """What the newest run printed."""
        return (self.folder / f"run-{len(self.running) - 1}.log").read_text()

    def job(self, phase: str) -> str:
        """The name of the only job, as soon as it has the phase."""

        def there() -> str | None:
            ended = self.running[-1].poll()
            assert ended is None, f"{ended}: {self.said()}"
            found = self.p.api.list("LoRARLJob", self.namespace)
            names = [one["metadata"]["name"] for one in found if one.get("status", {}).get("phase") == phase]
            return names[0] if names else None

        return until(PATIENCE, f"a job is {phase}", there)


@pytest.fixture
def kubeflow(kuberay_platform: Platform, replica: Operator, tmp_path: Path) -> Iterator[Kubeflow]:
    one = Kubeflow(kuberay_platform, tmp_path)
    yield one
    for process in one.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def finish(kubeflow: Kubeflow, name: str) -> None:
    """The job trains until its end."""
    api, namespace = kubeflow.p.api, kubeflow.namespace
    adapter = {"uri": TRAINED["adapter"], "sha256": TRAINED["sha256"], "step": 4, "version": 5}
    metrics = {"evalScore": TRAINED["score"], "reward": 0.5}
    report(api, namespace, name, step=4, totalSteps=4, progress="4/4", adapter=adapter, metrics=metrics)
    kubeflow.p.finish(namespace, f"{name}-1", "SUCCEEDED")


def job() -> dict[str, object]:
    return lorarljob("", "of-the-manifest", data=DATA) | {"metadata": {"name": "of-the-manifest"}}


@needs_kfp
def test_the_pages_command_writes_the_pipeline(tmp_path: Path) -> None:
    subprocess.run([PYTHON, ROOT / "examples/pipelines/kubeflow_pipeline.py"], cwd=tmp_path, check=True)
    (pipeline,) = yaml.safe_load_all((tmp_path / "train.yaml").read_text())
    assert list(pipeline["root"]["inputDefinitions"]["parameters"]) == ["manifest"]
    assert set(pipeline["root"]["outputDefinitions"]["parameters"]) == set(TRAINED)


@needs_kfp
def test_a_pipeline_has_the_adapter_its_digest_and_its_score(kubeflow: Kubeflow) -> None:
    run = kubeflow.run(job())
    name = kubeflow.job("Running")
    assert name.startswith("train-")
    finish(kubeflow, name)
    assert run.wait(PATIENCE) == 0, kubeflow.said()
    assert json.loads(kubeflow.said().splitlines()[-1]) == TRAINED
    (role,) = (one for one in yaml.safe_load_all(RIGHTS.read_text()) if one["kind"] == "Role")
    log, user = kubeflow.p.cluster.audit_log, account(kubeflow.namespace, ACCOUNT)
    assert used(log, user) - {LOOKS} == granted(role["rules"])
    assert {line.partition(": ")[0] for line in refused(log, user)} <= {f"get /api/v1/namespaces/{kubeflow.namespace}"}


@needs_kfp
def test_a_job_that_fails_fails_the_pipeline_with_its_reason(kubeflow: Kubeflow) -> None:
    run = kubeflow.run(job() | {"spec": {**job()["spec"], "backoffLimit": 0}})  # type: ignore[dict-item]
    name = kubeflow.job("Running")
    kubeflow.p.finish(kubeflow.namespace, f"{name}-1", "FAILED", "the data ran out")
    assert run.wait(PATIENCE) != 0
    assert f"{name}  Failed" in kubeflow.said() and "Failed=True" in kubeflow.said()


@needs_kfp
def test_a_step_that_starts_again_waits_for_the_same_job(kubeflow: Kubeflow) -> None:
    lost = kubeflow.run(job(), "kept")
    assert kubeflow.job("Running") == "kept"
    os.killpg(lost.pid, signal.SIGKILL)
    run = kubeflow.run(job(), "kept")
    finish(kubeflow, "kept")
    assert run.wait(PATIENCE) == 0, kubeflow.said()
    assert json.loads(kubeflow.said().splitlines()[-1]) == TRAINED
    assert len(kubeflow.p.api.list("LoRARLJob", kubeflow.namespace)) == 1


@needs_kfp
def test_a_job_without_held_out_rows_has_no_score(kubeflow: Kubeflow) -> None:
    run = kubeflow.run(lorarljob("", "") | {"metadata": {"name": "x"}}, "blind")
    kubeflow.job("Running")
    report(kubeflow.p.api, kubeflow.namespace, "blind", step=4, totalSteps=4, progress="4/4")
    kubeflow.p.finish(kubeflow.namespace, "blind-1", "SUCCEEDED")
    assert run.wait(PATIENCE) != 0 and "the job blind has no score" in kubeflow.said()


@pytest.mark.long
def test_the_pipeline_runs_with_the_real_package(tmp_path: Path) -> None:
    """Without a skip: kfp comes from the index, into an environment of this test."""
    venv.create(tmp_path / "env", symlinks=True)
    python = str(tmp_path / "env/bin/python")
    command: Sequence[str] = [python if part == sys.executable else part for part in installer()]
    subprocess.run([*command, REQUIREMENT, f"{ROOT}[kubectl]"], check=True)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not long", __file__],
        env={**os.environ, VARIABLE: python},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0 and "skipped" not in ran.stdout, ran.stdout
