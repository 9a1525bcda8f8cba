"""AIBrix's ModelAdapter: what is created for a version, and what AIBrix's controller says about it.

Read in vllm-project/aibrix at e3e10f9e: api/model/v1alpha1/modeladapter_types.go, pkg/controller/modeladapter/ and
python/aibrix/aibrix/runtime/. The name of the object is the name of the model. AIBrix neither downloads nor loads
anything again under a name that a server has already, so each version has its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lorarl_api.schedules.manifest import LABEL_SCHEDULE
from lorarl_api.v1alpha1 import SCHEDULE_KIND, PublishedVersion, PublishSpec
from lorarl_operator.decide.models import LABEL_JOB, LABEL_MANAGED_BY, MANAGED_BY, Job
from lorarl_operator.decide.served import Item

API_VERSION, KIND = "model.aibrix.ai/v1alpha1", "ModelAdapter"
LABEL_ENTRY = "lorarl.io/publish"
"""Name of the entry of spec.publish."""
ANNOTATION_VERSION = "lorarl.io/version"
"""The version as JSON: a job that is applied again learns from it what its predecessor left."""


def selector(job: Job) -> str:
    """Labels of all ModelAdapters of a job, also of an earlier one with its name, or of its schedule."""
    [(key, name)] = (_of_schedule(job) or {LABEL_JOB: job.name}).items()
    return f"{LABEL_MANAGED_BY}={MANAGED_BY},{key}={name},{LABEL_ENTRY}"


def _of_schedule(job: Job) -> dict[str, str]:
    """The label that the ModelAdapters of all jobs of a schedule share; empty for another job."""
    return {LABEL_SCHEDULE: job.maker.name} if job.maker and job.maker.kind == SCHEDULE_KIND else {}


def model_adapter(job: Job, entry: PublishSpec, version: PublishedVersion) -> dict[str, Any]:
    """The ModelAdapter of a version. No owner: it stays when the job is deleted."""
    target = entry.aibrix
    spec = {
        "artifactURL": f"{version.uri}/",  # Without the slash, AIBrix would look for one file of this name.
        "podSelector": {"matchLabels": dict(target.pod_selector)},
        "baseModel": target.base_model,
        "credentialsSecretRef": {"name": target.credentials_secret} if target.credentials_secret else None,
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": version.model,
            "namespace": job.namespace,
            "labels": {
                LABEL_MANAGED_BY: MANAGED_BY,
                LABEL_JOB: job.name,
                **_of_schedule(job),
                LABEL_ENTRY: entry.name,
            },
            "annotations": {ANNOTATION_VERSION: json.dumps(version.model_dump(by_alias=True))},
        },
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def change(item: Item, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch after which an object has the wanted spec; None if it has it already."""
    labels = wanted["podSelector"]["matchLabels"]
    before = (item.spec.get("podSelector") or {}).get("matchLabels") or {}
    secret = (item.spec.get("credentialsSecretRef") or {}).get("name")
    now = (before, item.spec.get("artifactURL"), item.spec.get("baseModel"), secret)
    ours = (wanted.get("credentialsSecretRef") or {}).get("name")
    if now == (labels, wanted["artifactURL"], wanted.get("baseModel"), ours):
        return None
    gone = dict.fromkeys({*before} - {*labels})
    absent = {key: None for key in ("baseModel", "credentialsSecretRef") if key not in wanted}
    spec = {**wanted, **absent, "podSelector": {"matchLabels": {**gone, **labels}}}
    return {"metadata": {"uid": item.uid}, "spec": spec}


def item_of(raw: Mapping[str, Any]) -> Item:
    """What AIBrix has made of a version."""
    meta, status = raw["metadata"], raw.get("status") or {}
    # `readyReplicas` keeps its value when all pods have gone; `instances` does not.
    ready, desired = len(status.get("instances") or ()), status.get("desiredReplicas") or 0
    phase = str(status.get("phase") or "")
    text = f"{ready} of {desired} pods have it" if desired else "no ready pod has the labels of podSelector"
    said: dict[str, Any] = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
    runs = phase == "Running" and ready > 0
    return Item(
        entry=meta["labels"][LABEL_ENTRY],
        model=meta["name"],
        uid=meta["uid"],
        version=_recorded(meta),
        answers=runs,
        ready=runs and ready >= desired,
        failed=str(said.get("message") or "AIBrix does not say why") if phase == "Failed" else "",
        text=text if phase else "AIBrix has not looked at it yet",
        going="deletionTimestamp" in meta,
        spec=raw.get("spec") or {},
    )


def _recorded(meta: Mapping[str, Any]) -> PublishedVersion | None:
    text = (meta.get("annotations") or {}).get(ANNOTATION_VERSION, "")
    try:
        version = PublishedVersion.model_validate_json(text, extra="ignore")  # a later operator may write more
    except ValidationError:
        return None
    return version if version.model == meta["name"] else None
