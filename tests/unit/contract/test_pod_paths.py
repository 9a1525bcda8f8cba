"""A relative path in a manifest whose pods mount volumes is found before a pod fails by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import faults, job_of
from lorarl_api.pod_paths import relative_path_faults
from lorarl_api.validate import validate_files
from unit.contract.manifests import manifest

VOLUME: dict[str, Any] = {
    "spec": {
        "volumes": [{"name": "share", "nfs": {"server": "files", "path": "/"}}],
        "containers": [{"name": "ray-worker", "volumeMounts": [{"name": "share", "mountPath": "/share"}]}],
    }
}
HEAD = json.loads(json.dumps(VOLUME).replace("ray-worker", "ray-head"))
MOUNTED = {"spec.cluster.podTemplateOverrides": {"head": HEAD, "worker": VOLUME}}
ABSOLUTE = {"spec.model.uri": "file:///share/base", "spec.data.train.uri": "file:/share/train.jsonl"}


@pytest.mark.parametrize(
    ("changes", "path", "example"),
    [
        ({"spec.model.uri": "file:out/base"}, "spec.model.uri", "file:///share/out/base"),
        ({"spec.data.train.uri": "file:./rows.jsonl"}, "spec.data.train.uri", "file:///share/rows.jsonl"),
        ({"spec.checkpoint.uri": "file:adapters"}, "spec.checkpoint.uri", "file:///share/adapters"),
        (
            {"spec.data.evals": [{"name": "a", "uri": "file:a.jsonl"}]},
            "spec.data.evals[0].uri",
            "file:///share/a.jsonl",
        ),
        ({"spec.adapter.initFrom": "file:first"}, "spec.adapter.initFrom", "file:///share/first"),
        (
            {"spec.reward": {"function": "r:score", "source": {"uri": "file:rewards"}}},
            "spec.reward.source.uri",
            "file:///share/rewards",
        ),
    ],
)
def test_validate_refuses_a_relative_path_with_the_fix(
    changes: dict[str, Any], path: str, example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(manifest({**MOUNTED, **ABSOLUTE, **changes})))
    assert validate_files([job]) == 1
    told = capsys.readouterr().out
    assert f"{path}: got " in told and f"for example {example}. The pods mount /share." in told
    # What it says to write is taken.
    job.write_text(job.read_text().replace(json.dumps(_value(changes)), json.dumps(example)))
    assert validate_files([job]) == 0, capsys.readouterr().out


def _value(changes: Any) -> str:
    """The relative path of the changes."""
    if isinstance(changes, str):
        return changes if changes.startswith("file:") else ""
    inner = changes.values() if isinstance(changes, dict) else changes
    return next(filter(None, map(_value, inner)), "")


def test_without_volumes_a_relative_path_is_for_this_machine() -> None:
    assert list(relative_path_faults(job_of(manifest()))) == []


def test_the_api_server_refuses_relative_checkpoints_on_volumes_too() -> None:
    assert [
        fault.path for fault in faults(manifest({**MOUNTED, "spec.checkpoint.uri": "file:a"}), in_cluster=True)
    ] == ["spec.checkpoint.uri"]
    assert faults(manifest({**MOUNTED, "spec.checkpoint.uri": "file:///share/a"}), in_cluster=True) == []


def test_volumes_of_engines_alone_count_too() -> None:
    engine = json.loads(json.dumps(VOLUME).replace("ray-worker", "ray-engine"))
    overrides = {"spec.rollout.separateEngines": {}, "spec.cluster.podTemplateOverrides": {"engine": engine}}
    found = relative_path_faults(job_of(manifest({**overrides, **ABSOLUTE, "spec.model.uri": "file:out/base"})))
    assert [fault.path for fault in found] == ["spec.model.uri"]
