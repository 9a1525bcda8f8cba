"""`lorarl run` refuses what one machine cannot do, and warns about the fields that it ignores."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import ClusterSpec, LoRARLJob, LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.local import (
    _JOB_FIELDS,
    ignored_fields,
    only_run_in,
    refuse_cluster_jobs,
    require_large_files,
    require_own_folder,
)
from unit.contract.manifests import manifest

# For each field of spec.cluster that one machine ignores, a value other than the default.
CLUSTER_FIELDS: dict[str, Any] = {
    "minNodes": 1,
    "gpuResource": "example.com/gpu",
    "gpuClaim": {"deviceClass": "gpu.nvidia.com"},
    "allowConsolidation": True,
    "disruption": "AfterCheckpoint",
    "env": {"HTTPS_PROXY": "http://proxy:3128"},
    "trustedCa": {"configMap": "authorities"},
    "image": "trainer:1",
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["registry"],
    "cpusPerNode": 8,
    "memoryPerNode": "64Gi",
    "diskPerNode": "200Gi",
    "head": {"cpus": 2},
    "environments": {"replicas": 2},
    "sharedMemory": "1Gi",
    "rdma": {"resourceName": "rdma/hca"},
    "submissionMode": "HTTPMode",
    "serviceAccountName": "trainer",
    "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
    "priorityClassName": "high",
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"operator": "Exists"}],
    "topology": {"key": "zone"},
    "schedulerName": "volcano",
    "terminationGracePeriodSeconds": 60,
    "podTemplateOverrides": {"head": {"spec": {"hostNetwork": True}}},
}


def job(changes: dict[str, Any]) -> LoRARLJob:
    return load_job(json.dumps(manifest(changes)))


def test_one_process_at_a_time_makes_a_run_in_a_folder(tmp_path: Path) -> None:
    with only_run_in(tmp_path / "run"):
        message = rf"--out: got .*, in which process {os.getpid()} makes a run, expected a folder without a running job"
        with pytest.raises(InputError, match=message), only_run_in(tmp_path / "run"):
            pass
    with only_run_in(tmp_path / "run"):
        pass


def test_the_folder_of_another_job_s_run_is_refused(tmp_path: Path) -> None:
    require_own_folder(job({}), tmp_path)
    (tmp_path / "run_summary.json").write_text(json.dumps({"job": job({}).name}))
    require_own_folder(job({}), tmp_path)
    (tmp_path / "run_summary.json").write_text(json.dumps({"job": "another"}))
    with pytest.raises(InputError, match=r"--out: got .*, which has the run of the job another, expected a folder for"):
        require_own_folder(job({}), tmp_path)


def test_a_limit_for_the_size_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait a minute for its own processes, which cannot write."""
    require_large_files()
    monkeypatch.setattr("resource.getrlimit", lambda which: (100_000, 100_000))
    with pytest.raises(
        InputError, match=r"ulimit -f: got 100,000 bytes for one file, .* Raise it: ulimit -f unlimited"
    ):
        require_large_files()


def test_a_manifest_for_one_machine_has_no_ignored_fields() -> None:
    assert ignored_fields(job({"spec.cluster": {"gpusPerNode": 4}, "metadata.labels": {"team": "a"}})) == []


def test_defaults_that_are_written_out_are_not_named() -> None:
    read_back = manifest() | {"spec": job({}).spec.model_dump(mode="json", by_alias=True, exclude_none=True)}
    assert read_back["spec"]["backoffLimit"] == 3
    assert ignored_fields(load_job(json.dumps(read_back))) == []


@pytest.mark.parametrize("field", CLUSTER_FIELDS)
def test_each_ignored_field_of_spec_cluster_is_named(field: str) -> None:
    gpus = {"gpusPerNode": 1} if field in ("rdma", "gpuClaim") else {}
    plays = {"spec.environment": {"function": "game:Game"}, "spec.reward": None} if field == "environments" else {}
    asked = {"spec.cluster": {field: CLUSTER_FIELDS[field], **gpus}, **plays}
    assert ignored_fields(job(asked)) == [f"spec.cluster.{field}"]


def test_every_field_of_spec_cluster_is_covered() -> None:
    fields = {info.alias for info in ClusterSpec.model_fields.values()}
    assert fields == {*CLUSTER_FIELDS, "nodes", "gpusPerNode"}


def test_all_other_fields_that_need_a_cluster_are_named() -> None:
    asked = job(
        {
            "metadata.labels": {"kueue.x-k8s.io/queue-name": "research", "team": "a"},
            "metadata.annotations": {"kai.scheduler/queue": "a"},
            "spec.checkpoint": {"uri": "s3://a/b", "deletionPolicy": "Delete"},
            "spec.templateRef": {"name": "small"},
            "spec.cluster.image": "trainer:1",
            "spec.backoffLimit": 0,
            "spec.activeDeadlineSeconds": 1,
            "spec.startDeadlineSeconds": 1,
            "spec.ttlSecondsAfterFinished": 0,
        }
    )
    assert ignored_fields(asked) == [
        "metadata.labels[kueue.x-k8s.io/queue-name]",
        "metadata.annotations[kai.scheduler/queue]",
        "spec.checkpoint.deletionPolicy",
        "spec.cluster.image",
        "spec.backoffLimit",
        "spec.activeDeadlineSeconds",
        "spec.startDeadlineSeconds",
        "spec.ttlSecondsAfterFinished",
        "spec.templateRef",
    ]


def test_publishing_is_the_operators() -> None:
    kept = {"uri": "s3://a/b", "keepBest": {}, "keepAll": True}
    data = {"train": {"uri": "file:train.jsonl"}, "eval": {"uri": "file:eval.jsonl"}}
    publish = [{"name": "sums", "minimum": 0.5, "aibrix": {"podSelector": {"a": "b"}, "baseModel": "base"}}]
    asked = job({"spec.checkpoint": kept, "spec.data": data, "spec.publish": publish})
    assert ignored_fields(asked) == ["spec.publish"]


def test_every_field_of_a_job_is_honoured_or_named() -> None:
    """`suspend` is refused. Parts of checkpoint and cluster are named."""
    honoured = {"model", "adapter", "algorithm", "reward", "rewards", "environment", "data", "rollout"}
    honoured |= {"trainer", "tracking", "suspend"}
    assert set(LoRARLJobSpec.model_fields) == {*honoured, "checkpoint", "cluster", *_JOB_FIELDS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"spec.suspend": True},
            "spec.suspend: got true, expected false for `lorarl run`. Set it to false: --set spec.suspend=false.",
        ),
        (
            {"spec.cluster.nodes": 2},
            "spec.cluster.nodes: got 2, expected 1 for `lorarl run`, which uses only this machine. "
            "Use --set spec.cluster.nodes=1.",
        ),
    ],
)
def test_fields_that_one_machine_cannot_honour_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        refuse_cluster_jobs(job(changes))
    assert str(caught.value) == message
