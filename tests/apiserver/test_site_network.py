"""The whole manifests of docs/site-network.md, applied as they are: what head, workers and clean-up get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lorarl_api.render import render
from support.cluster.client import Object
from support.cluster.operator import Operator
from support.cluster.platform import Platform

SITE = Path(__file__).parents[2] / "examples/site"
BUNDLE = "/etc/lorarl/ca/ca.crt"


@pytest.fixture(scope="module")
def p(kuberay_platform: Platform) -> Platform:
    kuberay_platform.cluster.must("create", "namespace", "team")
    return kuberay_platform


def applied(p: Platform, name: str) -> list[Object]:
    """The pods of head and workers that KubeRay is asked for."""
    path = SITE / f"{name}.yaml"
    p.cluster.must("apply", "-f", str(path))
    (job,) = (one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "LoRARLJob")
    rayjob = p.api.wait("RayJob", f"{job['metadata']['name']}-1", "team", bool, seconds=30)["spec"]["rayClusterSpec"]
    rendered = yaml.safe_load(render(path))["spec"]["cluster"]
    pods = [rayjob["headGroupSpec"]["template"]["spec"], rayjob["workerGroupSpecs"][0]["template"]["spec"]]
    for pod in pods:
        assert (
            rendered.get("env", {}).items()
            <= (env(pod) | {"NO_PROXY": rendered.get("env", {}).get("NO_PROXY")}).items()
        )
    return pods


def env(pod: Object) -> dict[str, Any]:
    return {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}


def test_behind_a_proxy(p: Platform, replica: Operator) -> None:
    for pod in applied(p, "proxy"):
        assert env(pod)["HTTPS_PROXY"] == "http://proxy.example.com:3128"
        assert env(pod)["NO_PROXY"].startswith(".cluster.local,.example.com,10.0.0.0/8,localhost,")
        assert env(pod)["NO_PROXY"].endswith("$(KUBERNETES_SERVICE_HOST)")


def test_with_a_private_ca(p: Platform, replica: Operator) -> None:
    for pod in applied(p, "private-ca"):
        assert env(pod)["SSL_CERT_FILE"] == env(pod)["REQUESTS_CA_BUNDLE"] == BUNDLE
        assert [one["configMap"]["name"] for one in pod["volumes"] if one["name"] == "trusted-ca"] == ["trusted-cas"]
    config = p.api.get("ConfigMap", "lorarl-gsm8k-ca", "team")
    assert config is not None
    assert "https://mlflow.example.com" in config["data"]["job.yaml"]


def test_air_gapped(p: Platform, replica: Operator) -> None:
    head, worker = applied(p, "air-gapped")
    for pod in (head, worker):
        assert pod["containers"][0]["image"] == "registry.example.com/lorarl/trainer:0.1.0-cuda"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert (env(pod)["HF_ENDPOINT"], env(pod)["SSL_CERT_FILE"]) == ("https://hub.example.com", BUNDLE)
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in worker["tolerations"]
    assert [one["configMap"]["name"] for one in head["volumes"] if one["name"].startswith("reward-")] == ["my-rewards"]
    rayjob = p.api.get("RayJob", "gsm8k-air-gapped-1", "team")
    assert rayjob is not None
    assert rayjob["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
