"""`lorarl validate` looks into podTemplateOverrides by Kubernetes' own schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import lorarl_api
from lorarl_api.load import load_job
from lorarl_api.pod_merge import merge
from lorarl_api.pod_overrides import override_faults
from unit.contract.manifests import manifest

WORKER = "spec.cluster.podTemplateOverrides.worker"
RAY = {"name": "ray-worker"}
TYPES: dict[str, Any] = json.loads((Path(lorarl_api.__file__).parent / "pod_schema.json").read_text())["types"]


def faults_of(spec: Any, **about: Any) -> list[str]:
    """The messages for a worker's override, without the path that all have."""
    cluster = {"gpusPerNode": 2, "image": "example.com/trainer:1", "podTemplateOverrides": {"worker": {"spec": spec}}}
    job = load_job(yaml.safe_dump(manifest({"spec.cluster": cluster, "metadata.labels": about or None})))
    return [str(fault).removeprefix(f"{WORKER}.spec.") for fault in override_faults(job)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"node_selector": {"gpu": "h100"}},
            "node_selector: got an unknown key, expected a field of Kubernetes' PodSpec. Did you mean nodeSelector?",
        ),
        (
            {"image": "x"},
            "image: got an unknown key, expected a field of Kubernetes' PodSpec. Move it: it is a field of Container.",
        ),
        (
            {"containers": [{"env": []}]},
            "containers[0].name: got nothing, expected a value. Add name: ray-worker for Ray's own container, or the "
            "name of another one.",
        ),
        (
            {"containers": [RAY | {"env": [{"name": "NCCL_P2P_DISABLE", "value": 1}]}]},
            'containers[0].env[0].value: got 1, expected a string. Write it in quotes: "1".',
        ),
        (
            {"containers": [RAY | {"volumeMounts": [{"name": "scratch"}]}]},
            "containers[0].volumeMounts[0].mountPath: got nothing, expected a value. Add mountPath.",
        ),
        (
            {"tolerations": {"key": "spot"}},
            "tolerations: got a mapping with 1 entry, expected a list. Put a dash before each entry.",
        ),
        (
            {"terminationGracePeriodSeconds": "60"},
            'terminationGracePeriodSeconds: got "60", expected a whole number. Write a number without quotes.',
        ),
        (
            {"containers": [RAY | {"resources": {"requests": {"memory": "64 GB"}}}]},
            'containers[0].resources.requests.memory: got "64 GB", expected a Kubernetes quantity. Write a quantity '
            'such as 64Gi, 500m or "2".',
        ),
        (
            {"containers": [RAY | {"resources": {"limits": {"memory": "64Gi"}}}]},
            "containers, ray-worker, resources.limits.memory: got 64Gi, expected at least the container's request, "
            "128Gi. Set resources.requests.memory to 64Gi there too, or raise the limit.",
        ),
        (
            {"containers": [RAY | {"resources": {"limits": {"nvidia.com/gpu": 4}}}]},
            "containers, ray-worker, resources.limits.nvidia.com/gpu: got 4, expected the container's request, 2. Set "
            "resources.requests.nvidia.com/gpu to 4 there too.",
        ),
        (
            {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]},
            "containers, worker, image: got nothing, expected an image. Add image to this container, or name it "
            "ray-worker for Ray's own.",
        ),
        (
            {"initContainers": [{"name": "copy", "command": ["cp"]}]},
            "initContainers, copy, image: got nothing, expected an image. Add image to this container.",
        ),
    ],
)
def test_what_kubernetes_would_refuse_is_named(spec: Any, message: str) -> None:
    assert faults_of(spec) == [message]


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_every_field_of_every_type_is_known_and_its_misspelling_is_not(kind: str) -> None:
    """By the place of the type in a pod: whatever has it as a field, a list or a mapping."""
    from lorarl_api.pod_overrides import _faults

    for field in TYPES[kind]["fields"]:
        known = [str(one) for one in _faults(kind, {field: None}, ("x",)) if "unknown" in str(one)]
        misspelt = [str(one) for one in _faults(kind, {f"{field}_": None}, ("x",)) if "unknown" in str(one)]
        assert known == []
        assert len(misspelt) == 1 and misspelt[0].endswith(f"Did you mean {field}?")


def test_limits_may_be_lower_where_the_job_asks_for_less() -> None:
    asked = {"requests": {"memory": "32Gi"}, "limits": {"memory": "64Gi"}}
    assert faults_of({"containers": [RAY | {"resources": asked}]}) == []


def test_what_people_write_for_real_pods_has_no_faults() -> None:
    spec = {
        "nodeSelector": {"cloud.google.com/gke-accelerator": "nvidia-h100"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 30}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]
                }
            }
        },
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [
            {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "team", "readOnly": True}},
            {"name": "config", "configMap": {"name": "c", "defaultMode": 420}},
        ],
        "initContainers": [{"name": "copy", "image": "busybox", "command": ["cp", "a", "b"]}],
        "containers": [
            RAY
            | {
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "s"}}],
                "resources": {
                    "limits": {"nvidia.com/gpu": 2, "cpu": 64, "memory": "256Gi"},
                    "requests": {"cpu": "1.5"},
                },
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 1000},
                "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5},
            },
            {"name": "side", "image": "x", "ports": [{"containerPort": 80}]},
        ],
        "hostNetwork": None,
    }
    assert faults_of(spec) == []


def test_a_port_may_be_open_for_two_protocols() -> None:
    both = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "name": "dns"}]
    assert merge({"ports": [{"containerPort": 53}]}, {"ports": both}, "o")["ports"] == [both[1], both[0]]


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "one"), ("namespace", "kube-system"), ("finalizers", ["a.example/kept"]), ("generateName", "p-")],
)
def test_names_and_finalizers_of_pods_are_no_overrides(key: str, value: Any) -> None:
    """KubeRay creates pods with them: all of one name, or such as never go."""
    about = {"metadata": {"labels": {"team": "a"}, "annotations": {"a": "b"}, key: value}}
    for role in ("head", "worker"):
        job = load_job(yaml.safe_dump(manifest({"spec.cluster.podTemplateOverrides": {role: about}})))
        [fault] = override_faults(job)
        where = f"spec.cluster.podTemplateOverrides.{role}.metadata.{key}"
        assert str(fault) == f"{where}: got a value, expected labels and annotations alone. Remove it."
