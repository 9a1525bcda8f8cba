"""The generated CRD in a real API server: it accepts and refuses the same as Python, with the same hints."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from lorarl_api.load import ManifestError, load_job
from lorarl_api.yaml_reader import read_documents
from lorarl_operator.kube.client import Client
from lorarl_operator.kube.resources import LORARLJOBS
from support.cluster.client import Object
from support.cluster.control_plane import Cluster
from unit.contract.cases import CASES, Case
from unit.contract.manifests import UNSEEN, VOLUMES, changed, manifest
from unit.contract.traps import SCALARS, TRAPS, Trap
from unit.contract.updates import UPDATES, Update


def refused_by_python(text: str) -> bool:
    try:
        load_job(text)
    except ManifestError:
        return True
    return False


def apply(cluster: Cluster, text: str, *more: str) -> str | None:
    """The API server's refusal of a manifest; None if it accepts it."""
    done = cluster.kubectl("apply", "--dry-run=server", *more, "-f", "-", stdin=text)
    return done.stderr if done.returncode else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_rule_is_refused_with_the_field_and_the_fix(cluster: Cluster, case: Case) -> None:
    bad, good = json.dumps(manifest(case.bad)), json.dumps(manifest(case.good))
    refusal = apply(cluster, bad)
    assert refusal is not None
    assert case.field in refusal
    assert case.hint in refusal
    assert refused_by_python(bad)
    assert apply(cluster, good) is None
    assert not refused_by_python(good)


@pytest.mark.parametrize("update", UPDATES, ids=lambda update: update.name)
def test_an_update_changes_only_mutable_fields(cluster: Cluster, update: Update) -> None:
    name = f"update-{UPDATES.index(update)}"
    job = manifest(update.before | {"metadata.name": name})
    cluster.must("apply", "-f", "-", stdin=json.dumps(job))
    if update.phase:
        status = json.dumps({"status": {"phase": update.phase}})
        cluster.must("patch", "lrj", name, "--subresource=status", "--type=merge", "-p", status)
    text = json.dumps(changed(job, update.after))
    done = cluster.kubectl("apply", "-f", "-", stdin=text)
    if update.group is None:
        assert done.returncode == 0, done.stderr
        assert load_job(cluster.must("get", "lrj", name, "-o", "yaml")).spec == load_job(text).spec
    else:
        assert done.returncode != 0
        field = update.group.removeprefix("spec.")
        never = rf"{field} is immutable.*(another metadata.name|Delete the job)"
        now = rf"{update.group} may change only while nothing runs.*Set spec.suspend: true"
        message = rf"{update.group}: Invalid value.*({never}|{now})"
        assert re.search(message, done.stderr), done.stderr


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_python_and_the_api_server_read_yaml_alike(cluster: Cluster, trap: Trap) -> None:
    refusal = apply(cluster, trap.yaml)
    assert (refusal is None) == trap.good, refusal
    assert refused_by_python(trap.yaml) == (not trap.good)


def test_python_reads_each_word_of_yaml_like_kubectl(cluster: Cluster) -> None:
    lines = [f"  word{number}: {word}" for number, word in enumerate(SCALARS)]
    text = "\n".join(["apiVersion: lorarl.io/v1alpha1", "kind: LoRARLJob", "metadata: {name: words}", "spec:", *lines])
    by_kubectl = json.loads(
        cluster.must("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", stdin=text)
    )
    (by_python,) = read_documents(text)
    # As strings, because 1, 1.0 and True are equal in Python.
    assert {key: repr(value) for key, value in by_python["spec"].items()} == {
        key: repr(value) for key, value in by_kubectl["spec"].items()
    }


def test_the_api_server_sets_the_same_defaults_as_python(cluster: Cluster) -> None:
    text = json.dumps(manifest())
    stored = json.loads(cluster.must("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text))
    job = load_job(text)
    assert stored["spec"] == job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert stored["spec"]["rollout"]["maxResponseTokens"] == 1024


def test_an_object_from_the_cluster_is_a_valid_manifest(cluster: Cluster) -> None:
    cluster.must("apply", "-f", "-", stdin=json.dumps(manifest({"metadata.name": "back"})))
    text = cluster.must("get", "lrj", "back", "-o", "yaml", "--show-managed-fields")
    job = load_job(text)
    assert job.name == "back"
    assert job.spec == load_job(json.dumps(manifest())).spec


def test_kubectl_get_shows_the_progress_of_the_job(cluster: Cluster) -> None:
    cluster.must("apply", "-f", "-", stdin=json.dumps(manifest({"metadata.name": "columns"})))
    status = {
        "phase": "Running",
        "step": 12,
        "totalSteps": 200,
        "progress": "12/200",
        "nodes": 2,
        "gpus": 16,
        "rayJobName": "columns-3",
        "attempts": 1,
        "preemptions": 1,
        "restarts": 2,
        "estimatedRemainingSeconds": 940,
        "failure": {"reason": "OutOfMemory", "message": "The worker was out of memory.", "attempt": 1},
        "metrics": {"reward": 0.75, "kl": 0.001, "tokensPerSecond": 1234.5},
        "adapter": {"uri": "s3://team/adapters/columns/iter_0000010/lora_adapter", "step": 10, "version": 10},
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "lastTransitionTime": "2026-01-31T12:00:00Z",
                "reason": "Running",
                "message": "",
            },
        ],
    }
    cluster.must(
        "patch", "lrj", "columns", "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )
    header, row = cluster.must("get", "lrj", "columns").splitlines()
    assert header.split() == ["NAME", "PHASE", "REASON", "STEP", "GPUS", "REWARD", "ADAPTER", "AGE"]
    assert row.split()[:7] == ["columns", "Running", "Running", "12/200", "16", "0.75", "10"]
    header, row = cluster.must("get", "lrj", "columns", "-o", "wide").splitlines()
    assert header.split() == [
        "NAME",
        "PHASE",
        "REASON",
        "STEP",
        "GPUS",
        "REWARD",
        "ADAPTER",
        "AGE",
        "RAYJOB",
        "NODES",
        "KL",
        "TOK/S",
        "RESTARTS",
        "LEFT(S)",
        "URI",
        "SERVING",
    ]
    assert row.split()[8:] == [
        "columns-3",
        "2",
        "0.001",
        "1234.5",
        "2",
        "940",
        "s3://team/adapters/columns/iter_0000010/lora_adapter",
    ]
    read = load_job(cluster.must("get", "lrj", "columns", "-o", "yaml"))
    assert read.status is not None
    assert read.status.model_dump(mode="json", by_alias=True, exclude_none=True) == {"observedGeneration": -1, **status}


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "examples").glob("*.yaml")), ids=lambda path: path.name
)
def test_each_example_for_a_cluster_is_accepted(cluster: Cluster, path: Path) -> None:
    """Those for one machine have checkpoints in a folder, which a pod would take with it."""
    refusal = apply(cluster, path.read_text())
    if load_job(path).spec.checkpoint.uri.startswith("file:"):
        assert refusal is not None
        assert "spec.checkpoint.uri: Invalid value" in refusal
        assert "must be a store or pvc://CLAIM/FOLDER in a cluster" in refusal
    else:
        assert refusal is None


def test_checkpoints_in_a_folder_need_volumes_of_both_pods(cluster: Cluster) -> None:
    local = {"spec.checkpoint.uri": "file:///mnt/adapters"}
    assert apply(cluster, json.dumps(manifest(local | VOLUMES))) is None
    for role in ("head", "worker"):
        only = {f"spec.cluster.podTemplateOverrides.{role}.spec": {"volumes": []}}
        assert "must be a store" in (apply(cluster, json.dumps(manifest(local | only))) or "")
    text = json.dumps(manifest(local))
    assert not refused_by_python(text), "`lorarl run` takes it"


def test_users_cannot_write_the_status_with_the_spec(cluster: Cluster) -> None:
    cluster.must("apply", "-f", "-", stdin=json.dumps(manifest({"metadata.name": "no-status", "status": {"step": 3}})))
    assert json.loads(cluster.must("get", "lrj", "no-status", "-o", "json"))["status"] == UNSEEN


def test_kubectl_explain_reads_like_the_reference(cluster: Cluster) -> None:
    text = cluster.must("explain", "lorarljob.spec.rollout")
    assert "How vLLM generates." in text
    fields = re.findall(r"^  (\w+)\t<(\w+)>", text, re.MULTILINE)
    assert ("maxResponseTokens", "integer") in fields
    assert ("temperature", "number") in fields
    assert "Most tokens of a completion" in text


@pytest.mark.parametrize(
    ("path", "fields", "part"),
    [
        (
            "spec",
            {"suspend": "boolean", "backoffLimit": "integer", "cluster": "Object"},
            "Default 3 (batch/v1 Jobs: 6)",
        ),
        (
            "spec.cluster",
            {"gpusPerNode": "integer", "nodeSelector": "map[string]string", "tolerations": "[]Object"},
            "/dev/shm",
        ),
        ("spec.cluster.cpusPerNode", {}, "as a Kubernetes quantity"),
        ("spec.cluster.podTemplateOverrides.worker", {"spec": "Object", "metadata": "Object"}, "Part of a PodSpec"),
        ("spec.checkpoint", {"deletionPolicy": "string"}, "enum: Retain, Delete"),
        ("status", {"phase": "string", "restarts": "integer"}, "enum: Pending, Starting, Running, Suspending, ...."),
    ],
)
def test_kubectl_explains_the_fields_of_a_cluster(
    cluster: Cluster, path: str, fields: dict[str, str], part: str
) -> None:
    text = cluster.must("explain", f"lorarljob.{path}")
    assert part in " ".join(text.split())
    assert fields.items() <= dict(re.findall(r"^  (\w+)\t<([^>]+)>", text, re.MULTILINE)).items(), text


def test_the_operators_lists_of_metadata_have_no_specs(cluster: Cluster) -> None:
    """A resync compares versions. The whole objects of thousands of pods would be most of its bytes."""
    cluster.must("apply", "-f", "-", stdin=json.dumps(manifest({"metadata.name": "listed"})))

    async def read(*, metadata_only: bool) -> list[Object]:
        client = await Client.connect(str(cluster.kubeconfig))
        pages = client.pages(LORARLJOBS, "default", fields="metadata.name=listed", metadata_only=metadata_only)
        try:
            return [one async for items, _ in pages for one in items]
        finally:
            await client.close()

    (whole,), (partial,) = (asyncio.run(read(metadata_only=only)) for only in (False, True))
    assert set(partial) - {"kind", "apiVersion"} == {"metadata"}
    assert partial["metadata"] == whole["metadata"]
    assert "spec" in whole
