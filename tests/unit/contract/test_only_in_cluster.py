"""Sweeps and schedules exist in a cluster only, so `lorarl validate` applies the rules that hold only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lorarl_api.faults import ManifestError
from lorarl_api.load import faults
from lorarl_api.render import render
from lorarl_api.rules import broken_rules
from lorarl_api.sweeps.manifest import sweep_faults
from lorarl_api.v1alpha1 import RULES_LATER, LoRARLJob
from lorarl_api.v1alpha1.spec_rules import CLUSTER_RULES
from lorarl_api.validate import validate_files
from unit.contract.manifests import Changes, manifest
from unit.contract.schedule_cases import schedule
from unit.contract.sweep_cases import sweep

BROKEN: dict[str, Changes] = {
    "spec.checkpoint.uri": {"spec.checkpoint.uri": "file:adapters"},
    "spec.cluster.podTemplateOverrides.engine": {
        "spec.cluster.podTemplateOverrides": {"engine": {"spec": {"hostNetwork": True}}}
    },
    "spec.cluster.podTemplateOverrides.environment": {
        "spec.cluster.podTemplateOverrides": {"environment": {"spec": {"hostNetwork": True}}}
    },
    "spec.cluster.podTemplateOverrides.engine, GPUs": {
        "spec.cluster.gpusPerNode": 1,
        "spec.cluster.gpuResource": "",
        "spec.rollout.separateEngines": {},
    },
    "spec.rollout.serverFolder": {"spec.rollout.servers": ["http://vllm:8000"]},
}
"""What breaks a rule, by the field that the fault names."""


def test_each_rule_of_a_cluster_is_tried() -> None:
    found = []
    for changes in BROKEN.values():
        job = manifest(changes)
        assert faults(job) == [], "lorarl run takes it"
        model = LoRARLJob.model_validate(job, by_alias=True, by_name=False, context=RULES_LATER)
        found += [rule for _, rule in broken_rules(model, in_cluster=True)]
    assert sorted(found, key=str) == sorted(CLUSTER_RULES, key=str)


@pytest.mark.parametrize("named", BROKEN)
@pytest.mark.parametrize("made", [schedule, sweep])
def test_a_template_is_held_to_the_rules_of_a_cluster(
    made: Callable[[Changes], dict[str, Any]], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(made({f"spec.template.{path}": value for path, value in BROKEN[named].items()})))
    (of_job,) = faults(manifest(BROKEN[named]), in_cluster=True)
    assert of_job.path == named.partition(",")[0]
    assert validate_files([file]) == 1
    assert capsys.readouterr().out == f"{file}: spec.template.{of_job}\n", "once, not for each trial"


def test_a_schedule_that_a_cluster_refuses_is_not_rendered(tmp_path: Path) -> None:
    file = tmp_path / "nightly.yaml"
    file.write_text(yaml.safe_dump(schedule({"spec.template.spec.checkpoint.uri": "file:adapters"})))
    with pytest.raises(ManifestError, match=r"^spec\.template\.spec\.checkpoint\.uri: got"):
        render(file)
    assert "s3://b/c" in render(file, None, ["spec.template.spec.checkpoint.uri=s3://b/c"])


def test_a_trial_that_a_cluster_refuses_is_named() -> None:
    axis = {"path": "spec.checkpoint.uri", "values": ["s3://team/adapters", "file:adapters"]}
    (fault,) = sweep_faults(sweep({"spec.over": [axis]}))
    assert fault.path == "trial uri=file:adapters, spec.checkpoint.uri"


@pytest.mark.parametrize(("path", "value"), [("spec.checkpoint.uri", "file:a"), ("spec.checkpoint", {"uri": "file:a"})])
def test_what_all_trials_set_is_not_a_fault_of_the_template(path: str, value: dict[str, Any]) -> None:
    trials = [{"name": name, "set": {path: value, "spec.trainer.seed": seed}} for seed, name in enumerate("ab")]
    found = sweep_faults(sweep({"spec.over": None, "spec.trials": trials}))
    assert [one.path for one in found] == [f"trial {name}, spec.checkpoint.uri" for name in "ab"]


def test_a_fault_of_a_template_beside_one_of_a_trial() -> None:
    axis = {"path": "spec.adapter.rank", "values": [8, 0]}
    found = sweep_faults(sweep({"spec.over": [axis], "spec.template.spec.trainer.stepz": 1}))
    assert [one.path for one in found] == ["spec.template.spec.trainer.stepz", "trial rank=0, spec.adapter.rank"]
