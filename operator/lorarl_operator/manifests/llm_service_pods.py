"""The pods of an LLMInferenceService: which adapters they were started with, and whether they answer.

KServe's conditions do not say that. Ready is that of the Deployment, which stays available while old pods answer and
new ones start, or crash. So the pods say it: KServe starts vLLM with the names of its adapters, and vLLM is ready only
when it has loaded all of them. Read in kserve/kserve at aaac4e29: pkg/controller/v1alpha2/llmisvc/workload_lora.go and
workload_single_node.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SELECTOR = "app.kubernetes.io/part-of=llminferenceservice,kserve.io/component=workload"
"""Labels of the pods that compute, of all LLMInferenceServices of a namespace."""
_LABEL_SERVICE = "app.kubernetes.io/name"
_STUCK = ("BackOff", "Error", "ErrImagePull", "InvalidImageName")
_LONGEST_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class ServicePod:
    """A pod that is not being deleted.

    Attributes:
        models: Names of the adapters that it was started with.
        trouble: Why it does not become ready; empty if nothing says so.
    """

    models: frozenset[str]
    ready: bool
    trouble: str


def pods_by_service(objects: Iterable[Mapping[str, Any]]) -> dict[str, list[ServicePod]]:
    """The pods of each LLMInferenceService. `objects`: what `SELECTOR` selects in a namespace."""
    found: dict[str, list[ServicePod]] = {}
    for raw in objects:
        if "deletionTimestamp" not in raw["metadata"]:
            name = (raw["metadata"].get("labels") or {}).get(_LABEL_SERVICE, "")
            found.setdefault(name, []).append(_pod(raw))
    return found


def _pod(raw: Mapping[str, Any]) -> ServicePod:
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    started = (one for one in spec.get("containers") or () if one["name"] == "main")
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ())
    return ServicePod(
        models=frozenset(name for one in started for name in _modules(one.get("args") or ())),
        ready=ready,
        trouble="" if ready else next(_troubles(raw["metadata"]["name"], status), ""),
    )


def _modules(arguments: Iterable[str]) -> Iterator[str]:
    """The names in `--lora-modules '{"name": ..., "path": ...}' ...`, with a shell's quotes around each."""
    for one in arguments:
        if one.startswith("'{") and one.endswith("}'"):
            try:
                module = json.loads(one[1:-1])
            except ValueError:
                continue
            if isinstance(name := module.get("name"), str):
                yield name


def _troubles(pod: str, status: Mapping[str, Any]) -> Iterator[str]:
    """Why containers do not run: what the kubelet says, and the end of what they wrote before they ended."""
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason.endswith(_STUCK):
            ended = (one.get("lastState") or {}).get("terminated") or {}
            text = str(ended.get("message") or waiting.get("message") or "").strip()[-_LONGEST_MESSAGE:]
            yield f"{one['name']} of pod {pod}: {reason}" + (f": {text}" if text else "")
