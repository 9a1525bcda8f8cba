"""KServe's LLMInferenceServices: their definition, and what its controller writes and makes.

Read in kserve/kserve at aaac4e29, pkg/controller/v1alpha2/llmisvc: workload_lora.go, workload_single_node.go and
controller.go. The pods are those of its Deployment; without a kubelet, these tests say which of them are ready.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from support.cluster.client import Api, Object

CRD = Path(__file__).parents[1] / "kserve/serving.kserve.io_llminferenceservices.yaml.gz"
KIND = "LLMInferenceService"
_NUMBERS = itertools.count()


def adapters(api: Api, namespace: str, name: str = "qwen") -> list[Object]:
    """The list of adapters of a service."""
    found = api.get(KIND, name, namespace)
    assert found is not None
    return list(found["spec"]["model"].get("lora", {}).get("adapters") or [])


def names(api: Api, namespace: str, name: str = "qwen") -> set[str]:
    return {one["name"] for one in adapters(api, namespace, name)}


def rolls(api: Api, namespace: str, name: str = "qwen", pods: int = 2) -> None:
    """KServe replaces the pods by such with the present list, and they become ready."""
    before = _pods(api, namespace, name)
    for _ in range(pods):
        _start(api, namespace, name, {"conditions": [{"type": "Ready", "status": "True"}]})
    for one in before:
        api.delete("Pod", one, namespace)
    _observed(api, namespace, name)


def crashes(api: Api, namespace: str, why: str, name: str = "qwen") -> None:
    """KServe starts a pod with the present list, and vLLM ends there. The pods before stay, and so does Ready."""
    main = {
        "name": "main",
        "image": "vllm",
        "imageID": "",
        "ready": False,
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": why}},
    }
    status = {"conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [main]}
    _start(api, namespace, name, status)
    _observed(api, namespace, name)


def _pods(api: Api, namespace: str, name: str) -> list[str]:
    return [one["metadata"]["name"] for one in api.list("Pod", namespace, labels=f"app.kubernetes.io/name={name}")]


def _start(api: Api, namespace: str, name: str, status: Object) -> None:
    modules = [
        f"'{json.dumps({'name': each, 'path': '/mnt/lora/' + one['name']}, separators=(',', ':'))}'"
        for one in adapters(api, namespace, name)
        for each in (one["name"], f"publishers/{namespace}/models/{one['name']}")
    ]
    labels = {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/part-of": "llminferenceservice",
        "app.kubernetes.io/component": "llminferenceservice-workload",
        "kserve.io/component": "workload",
    }
    arguments = ["--enable-lora", "--lora-modules", *modules] if modules else []
    about = {"name": f"{name}-kserve-{next(_NUMBERS)}", "namespace": namespace, "labels": labels}
    spec = {"containers": [{"name": "main", "image": "vllm", "args": arguments}], "nodeName": "none"}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    api.patch("Pod", str(about["name"]), {"status": {"phase": "Running", **status}}, namespace, "status")


def _observed(api: Api, namespace: str, name: str) -> None:
    found = api.get(KIND, name, namespace)
    assert found is not None
    status = {
        "observedGeneration": found["metadata"]["generation"],
        "conditions": [{"type": "Ready", "status": "True"}, {"type": "WorkloadsReady", "status": "True"}],
    }
    api.patch(KIND, name, {"status": status}, namespace, "status")
