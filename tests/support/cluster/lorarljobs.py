"""LoRARLJobs for tests, the trainer's part of their status, and what the operator says of them in Events."""

from __future__ import annotations

from typing import Any

from lorarl_operator.kube.apply import APPLY_TYPE, apply_body
from support.cluster.client import Api, Object, path_of
from support.cluster.processes import until

TRAINER = "lorarl-trainer"


def lorarljob(
    namespace: str,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A small job on CPUs; `spec` replaces whole fields of its spec."""
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {
            "model": {"uri": "hf://example/tiny"},
            "adapter": {"rank": 8, "targetModules": ["all-linear"]},
            "algorithm": {"type": "sft"},
            "data": {"train": {"uri": "s3://team/train.jsonl", "promptField": "prompt", "answerField": "answer"}},
            "trainer": {"steps": 10},
            "checkpoint": {"uri": "s3://team/adapters"},
            **spec,
        },
    }


def template(namespace: str | None, name: str, **spec: Any) -> Object:
    """A template of a namespace, or of the cluster."""
    return {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJobTemplate" if namespace else "ClusterLoRARLJobTemplate",
        "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        "spec": spec,
    }


def report(api: Api, namespace: str, name: str, **status: Any) -> Object:
    """What the trainer applies: `step`, `totalSteps`, `metrics`, `adapter`, `failure`."""
    path = f"{path_of('LoRARLJob', namespace, name, 'status')}?fieldManager={TRAINER}&force=true"
    manifest = {
        "apiVersion": "lorarl.io/v1alpha1",
        "kind": "LoRARLJob",
        "metadata": {"name": name, "namespace": namespace},
        "status": status,
    }
    return api.request("PATCH", path, apply_body(manifest), APPLY_TYPE)


def condition(job: Object, kind: str) -> Object:
    """A condition of a job; empty where it has none of this type."""
    return next((one for one in job.get("status", {}).get("conditions", []) if one["type"] == kind), {})


def phase(job: Object) -> str:
    """A job's phase; empty before the operator has seen it."""
    found: str = job.get("status", {}).get("phase", "")
    return found


def events(api: Api, namespace: str, name: str) -> list[Object]:
    """A job's Events, in the order in which they were posted."""
    found = api.list("Event", namespace, fields=f"involvedObject.name={name},involvedObject.kind=LoRARLJob")
    return sorted(found, key=lambda event: int(event["metadata"]["resourceVersion"]))


def wait_event(api: Api, namespace: str, name: str, reason: str) -> str:
    """The message of a job's Event. Events are posted in the background, later than the status that they explain."""
    event, *_ = until(
        20, f"{name} has an Event {reason}", lambda: [e for e in events(api, namespace, name) if e["reason"] == reason]
    )
    message: str = event["message"]
    return message
