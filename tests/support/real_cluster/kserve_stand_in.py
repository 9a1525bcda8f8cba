"""What stands in for KServe's controller in a cluster with real pods: a Deployment of vLLM's server for a service.

Its pods are made as KServe makes them, read in kserve/kserve at aaac4e29 (pkg/controller/v1alpha2/llmisvc): labels,
container names, an init container that downloads, `--lora-modules` for each adapter under two names, and the probes'
path. The images of KServe itself are not there: containers run lorarl's trainer image, which has vLLM for CPUs.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from node.installation import apply
from support.cluster.client import ApiError, Object
from support.cluster.kserve import KIND
from support.cluster.kubectl import RealCluster

LOOK_SECONDS = 0.5
PORT = 8000
MODELS, ADAPTERS = "/mnt/models", "/mnt/lora"
DOWNLOAD = """
import os, pathlib, sys
import obstore
from obstore.store import S3Store
for uri, folder in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    store = S3Store(bucket, virtual_hosted_style_request=False, client_options={"allow_http": True})
    for one in [each["path"] for batch in obstore.list(store, prefix.rstrip("/") + "/") for each in batch]:
        path = pathlib.Path(folder, one.removeprefix(prefix.rstrip("/") + "/"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(obstore.get(store, one).bytes()))
"""
"""KServe's storage initializer has the same arguments: a URI and a folder, and so on."""
SERVE = (
    f"exec python -m vllm.entrypoints.openai.api_server --model {MODELS} --port {PORT} --dtype float32 "
    "--enforce-eager --max-model-len 64 --served-model-name"
)
ENVIRONMENT = {
    "HOME": "/tmp",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the image has no compiler
}


def name_of(service: str) -> str:
    """The name of a service's Deployment."""
    return f"{service}-kserve"


def labels(service: str) -> dict[str, str]:
    """The labels of a service's pods."""
    return {
        "app.kubernetes.io/name": service,
        "app.kubernetes.io/part-of": "llminferenceservice",
        "app.kubernetes.io/component": "llminferenceservice-workload",
        "kserve.io/component": "workload",
    }


def deployment(service: Object, image: str, secret: str) -> Object:
    """The Deployment of an LLMInferenceService. `secret`: has the store's keys, as KServe's ServiceAccount would."""
    name, model = service["metadata"]["name"], service["spec"]["model"]
    lora = model.get("lora", {})
    adapters = sorted(lora.get("adapters") or [], key=lambda one: str(one["name"]))
    pairs = [(model["uri"], MODELS), *((one["uri"], f"{ADAPTERS}/{one['name']}") for one in adapters)]
    names = (
        (one["name"], each)
        for one in adapters
        for each in (one["name"], f"publishers/{service['metadata']['namespace']}/models/{one['name']}")
    )
    modules = [
        f"'{json.dumps({'name': each, 'path': f'{ADAPTERS}/{own}'}, separators=(',', ':'))}'" for own, each in names
    ]
    limits = {"maxRank": "--max-lora-rank", "maxAdapters": "--max-loras", "maxCpuAdapters": "--max-cpu-loras"}
    given = [f"{flag}={lora[field]}" for field, flag in limits.items() if field in lora]
    arguments = ["--enable-lora", *given, "--lora-modules", *modules] if modules else []
    volumes = {"models": MODELS, "lora": ADAPTERS, "scratch": "/tmp"}
    mounts = [{"name": volume, "mountPath": path} for volume, path in volumes.items()]
    ours: dict[str, Any] = {"image": image, "volumeMounts": mounts, "terminationMessagePolicy": "FallbackToLogsOnError"}
    healthy = {"httpGet": {"path": "/health", "port": PORT}, "timeoutSeconds": 10}
    initializer = ours | {
        "name": "storage-initializer",
        "command": ["python", "-c", DOWNLOAD],
        "args": [part for pair in pairs for part in pair],
        "envFrom": [{"secretRef": {"name": secret}}],
    }
    main = ours | {
        "name": "main",
        "command": ["/bin/bash", "-c", f'eval "{SERVE} {model["name"]} $@"', "--"],
        "args": arguments,
        "env": [{"name": key, "value": value} for key, value in ENVIRONMENT.items()],
        "ports": [{"containerPort": PORT}],
        "startupProbe": {**healthy, "periodSeconds": 2, "failureThreshold": 300},
        "readinessProbe": {**healthy, "periodSeconds": 5, "failureThreshold": 6},
        "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}},
    }
    pod = {
        "initContainers": [initializer],
        "containers": [main],
        "volumes": [{"name": volume, "emptyDir": {}} for volume in volumes],
        "terminationGracePeriodSeconds": 5,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name_of(name), "labels": labels(name)},
        "spec": {
            "replicas": service["spec"].get("replicas", 1),
            "progressDeadlineSeconds": 1200,
            "selector": {"matchLabels": labels(name)},
            "template": {"metadata": {"labels": labels(name)}, "spec": pod},
        },
    }


@contextmanager
def kserve_stands_in(cluster: RealCluster, namespace: str, service: str, image: str, secret: str) -> Iterator[None]:
    """Keep a service's Deployment, and its status, as its list of adapters says, until the block ends."""
    over, failures = threading.Event(), []

    def keep() -> None:
        made = 0
        while not over.wait(LOOK_SECONDS):
            try:
                found = cluster.api.get(KIND, service, namespace)
                if found is None:
                    continue
                if found["metadata"]["generation"] != made:
                    apply(cluster, deployment(found, image, secret), namespace=namespace)
                    made = found["metadata"]["generation"]
                _observe(cluster, found)
            except (ApiError, OSError):
                continue  # it looks again
            except Exception as error:
                failures.append(error)
                raise

    thread = threading.Thread(target=keep, name=f"kserve-{service}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures, failures


def _observe(cluster: RealCluster, service: Object) -> None:
    """Write the status: Ready is what the Deployment says of its availability."""
    about = service["metadata"]
    found = cluster.api.get("Deployment", name_of(about["name"]), about["namespace"]) or {}
    conditions = found.get("status", {}).get("conditions", ())
    available = any(one["type"] == "Available" and one["status"] == "True" for one in conditions)
    said = "True" if available else "False"
    status = {
        "observedGeneration": about["generation"],
        "conditions": [{"type": each, "status": said} for each in ("Ready", "WorkloadsReady")],
    }
    before = service.get("status", {})
    if (before.get("observedGeneration"), [one["status"] for one in before.get("conditions", ())]) != (
        status["observedGeneration"],
        [said, said],
    ):
        cluster.api.patch(KIND, about["name"], {"status": status}, about["namespace"], "status")
