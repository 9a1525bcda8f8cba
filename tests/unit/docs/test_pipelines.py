"""docs/pipelines.md: what it shows is in the examples, whose manifests are valid and whose commands run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobStatus
from lorarl_api.v1alpha1.metadata import MAX_NAME
from support.argo import substituted

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples/pipelines"
PAGE = (ROOT / "docs/pipelines.md").read_text()
RUNTIME = yaml.safe_load((EXAMPLES / "trainer-runtime.yaml").read_text())
TRAIN_JOB = yaml.safe_load((EXAMPLES / "trainjob.yaml").read_text())
(MANIFEST,) = (one["value"] for one in TRAIN_JOB["spec"]["trainer"]["env"] if one["name"] == "LORARL_MANIFEST")


def test_the_shown_part_of_argos_template_is_the_examples() -> None:
    shown = re.findall(r"^```yaml\n(resource:.*?)^```", PAGE, re.M | re.S)[0]
    found = substituted("job", "demo", steps="7")["resource"]
    assert yaml.safe_load(shown)["resource"].items() <= found.items()


def test_argos_manifest_is_a_valid_job_of_the_workflow() -> None:
    job = load_job(substituted("job", "demo", steps="7")["resource"]["manifest"])
    assert (job.name, job.spec.trainer.steps) == ("demo", 7)


def test_each_phase_is_in_the_table() -> None:
    annotation = LoRARLJobStatus.model_fields["phase"].annotation
    phases = {phase for part in get_args(annotation) for phase in get_args(part)}
    rows = [line for line in PAGE.splitlines() if line.endswith(("| waits |", "resumed |", "outputs |", "reason |"))]
    assert set(re.findall(r"`([A-Z][a-z]+)`", "\n".join(rows))) == phases


def test_each_output_is_a_field_of_the_status() -> None:
    fields = re.findall(r"`status\.([a-zA-Z0-9.]+)`", PAGE)
    assert {"adapter.uri", "adapter.sha256", "metrics.evalScore", "best.value"} <= set(fields)
    schema = LoRARLJobStatus.model_json_schema(by_alias=True)
    for path in set(fields) - {"trainerStatus"}:
        at: dict[str, Any] = schema
        for key in path.split("."):
            at = next(one for one in [at, *_referred(schema, at)] if key in one.get("properties", {}))
            at = at["properties"][key]


def _referred(schema: dict[str, Any], at: dict[str, Any]) -> list[dict[str, Any]]:
    names = [one["$ref"].rpartition("/")[2] for one in [at, *at.get("anyOf", [])] if "$ref" in one]
    return [schema["$defs"][name] for name in names]


def test_the_train_jobs_manifest_runs_on_one_machine() -> None:
    job = load_job(MANIFEST)
    assert job.name == TRAIN_JOB["metadata"]["name"] and job.spec.cluster.nodes == 1
    limits = TRAIN_JOB["spec"]["trainer"]["resourcesPerNode"]["limits"]
    assert job.spec.cluster.gpus_per_node == limits["nvidia.com/gpu"]
    assert TRAIN_JOB["spec"]["runtimeRef"]["name"] == RUNTIME["metadata"]["name"]


def test_the_runtimes_command_runs_the_manifest(tmp_path: Path) -> None:
    """With `lorarl validate` in place of `lorarl run`."""
    (node,) = RUNTIME["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    program = tmp_path / "lorarl"
    program.write_text(
        f'#!/bin/bash\n[ "$1" = run ] && exec {sys.executable} -m lorarl_trainer.cli validate "${{@:2}}"\n'
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("crds", "trainer_image")),
        "LORARL_MANIFEST": MANIFEST,
    }
    done = subprocess.run(container["command"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "job.yaml: ok\n"), done.stderr


@pytest.mark.parametrize("folder", ["examples/pipelines/argo-rights.yaml", "examples/pipelines/kubeflow-rights.yaml"])
def test_the_pages_files_are_there_and_give_no_right_to_change_a_job(folder: str) -> None:
    (role,) = (one for one in yaml.safe_load_all((ROOT / folder).read_text()) if one["kind"] == "Role")
    (jobs,) = (rule for rule in role["rules"] if rule["apiGroups"] == ["lorarl.io"])
    assert jobs["verbs"] == ["get", "create"] and folder in PAGE


def test_the_pages_python_names_what_the_example_has() -> None:
    source = (EXAMPLES / "kubeflow_pipeline.py").read_text()
    tree = ast.parse(source)
    functions = {one.name: [arg.arg for arg in one.args.args] for one in tree.body if isinstance(one, ast.FunctionDef)}
    assert functions == {"train_adapter": ["manifest", "name"], "train": ["manifest"]}
    for code in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        for call in (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in functions:
                assert [one.arg for one in call.keywords] == functions[call.func.id]
    (prefix,) = {one for text in (PAGE, source) for one in re.findall(r'name=f"(.*){dsl.PIPELINE_JOB_ID', text)}
    assert len(f"{prefix}{uuid.uuid4()}") == MAX_NAME
    versions = {one for path in (ROOT / "docs/pipelines.md", EXAMPLES / "Dockerfile") for one in _kfp(path)}
    assert versions == {"kfp==2.17.3"}


def test_the_page_names_the_versions_that_are_tested() -> None:
    tools = (ROOT / "scripts/tools.sh").read_text()
    for module, name in (("argo-workflows/v4", "Argo Workflows"), ("kubeflow/trainer/v2", "Kubeflow Trainer")):
        (version,) = re.findall(rf"{module}@v(\d+\.\d+)\.\d+ ", tools)
        assert f"| {name} {version} |" in PAGE


def _kfp(path: Path) -> list[str]:
    return re.findall(r"kfp==[\d.]+", path.read_text())
