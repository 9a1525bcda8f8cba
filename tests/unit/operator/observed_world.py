"""API objects as the servers send them, and observations of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from lorarl_operator.decide import parse
from lorarl_operator.decide.models import (
    LABEL_ATTEMPT,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_ROLE,
    Observed,
    Refusal,
)
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.status import timestamp

SETTINGS = Settings(trainer_image="registry.example.com/lorarl/trainer:0.1.0")
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
Raw = dict[str, Any]

SPEC: Raw = {
    "model": {"uri": "hf://Qwen/Qwen2.5-0.5B"},
    "adapter": {"targetModules": ["all-linear"]},
    "reward": {"type": "exact"},
    "data": {"train": {"uri": "s3://team/train.jsonl", "promptField": "q", "answerField": "a"}},
    "checkpoint": {"uri": "s3://team/adapters", "credentialsSecret": "s3-keys"},
}


def ago(seconds: float, now: datetime = START) -> str:
    """A time in the API's format, this many seconds before now."""
    return timestamp(now - timedelta(seconds=seconds))


def raw_job(spec: Raw | None = None, status: Raw | None = None, **metadata: Any) -> Raw:
    """A LoRARLJob `demo`. `spec` overrides parts of a valid one."""
    about = {
        "namespace": "team",
        "name": "demo",
        "uid": "job-uid",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": ago(60),
    }
    return {"metadata": about | metadata, "spec": SPEC | (spec or {}), "status": status or {}}


def raw_ray_job(
    attempt: int = 1, *, age: float = 60, owner: str = "job-uid", suspend: bool = False, **status: Any
) -> Raw:
    """A RayJob of attempt `attempt`, created `age` seconds ago."""
    return {
        "metadata": {
            "name": f"demo-{attempt}",
            "uid": f"ray-{attempt}",
            "resourceVersion": "1",
            "creationTimestamp": ago(age),
            "labels": {LABEL_JOB: "demo", LABEL_JOB_UID: owner},
            "annotations": {"lorarl.io/generation": "1"},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "spec": {"suspend": suspend},
        "status": {"rayClusterName": f"cluster-{attempt}", **status},
    }


def raw_pod(role: str = "worker", attempt: int = 1, *, name: str = "", age: float = 60, **parts: Any) -> Raw:
    """A pod, created `age` seconds ago.

    `parts` belong to its status, except deletionTimestamp, deletionGracePeriodSeconds and nodeName.
    """
    about: Raw = {
        "name": name or f"demo-{attempt}-{role}",
        "uid": f"pod-{role}-{attempt}",
        "resourceVersion": "1",
        "creationTimestamp": ago(age),
        "labels": {LABEL_JOB: "demo", LABEL_JOB_UID: "job-uid", LABEL_ATTEMPT: str(attempt), LABEL_ROLE: role},
    }
    about["labels"]["ray.io/cluster"] = f"cluster-{attempt}"
    about |= {key: parts.pop(key) for key in ("deletionTimestamp", "deletionGracePeriodSeconds") if key in parts}
    return {
        "metadata": about,
        "spec": {"nodeName": parts.pop("nodeName", "node-1")},
        "status": {"phase": "Running", **parts},
    }


def condition(kind: str, holds: bool, reason: str = "", message: str = "", age: float = 0) -> Raw:
    """A condition of any object."""
    return {"type": kind, "status": str(holds), "reason": reason, "message": message, "lastTransitionTime": ago(age)}


def ended(role: str, code: int, reason: str = "Error", message: str = "", age: float = 1) -> list[Raw]:
    """containerStatuses of a pod whose Ray container has ended."""
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message, "finishedAt": ago(age)}}
    return [{"name": f"ray-{role}", "state": state}]


def init_failed(role: str, code: int = 1, message: str = "no such model", *, age: float = 1, **parts: Any) -> Raw:
    """A pod whose init container `fetch` has failed."""
    state = {"terminated": {"exitCode": code, "reason": "Error", "message": message, "finishedAt": ago(age)}}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    return raw_pod(
        role,
        phase="Failed",
        initContainerStatuses=[{"name": "fetch", "state": state}],
        containerStatuses=[{"name": f"ray-{role}", "state": waiting}],
        **parts,
    )


def observed(
    job: Raw, *ray_jobs: Raw, pods: list[Raw] | None = None, refusal: Refusal | None = None, **rest: Any
) -> Observed:
    """An observation, parsed."""
    return Observed(
        job=parse.job(job),
        ray_jobs=tuple(parse.ray_job(each) for each in ray_jobs),
        pods=tuple(parse.pod(each) for each in pods or []),
        **({"refusals": (refusal,)} if refusal else {}),
        **rest,
    )


def steps_of(spec: Raw) -> int:
    """The steps in a spec."""
    return int(spec.get("trainer", {}).get("steps", 200))
