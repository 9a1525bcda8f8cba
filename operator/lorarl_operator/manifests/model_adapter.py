"""AIBrix's ModelAdapter: what is created for a version, and what AIBrix's controller says about it.

Read in vllm-project/aibrix at e3e10f9e: api/model/v1alpha1/modeladapter_types.go, pkg/controller/modeladapter/ and
python/aibrix/aibrix/runtime/. The name of the object is the name of the model. AIBrix neither downloads nor loads
anything again under a name that a server has already, so each version has its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lorarl_api.v1alpha1 import PublishedVersion, PublishSpec
from lorarl_operator.decide.models import LABEL_JOB, LABEL_MANAGED_BY, MANAGED_BY, Job
from lorarl_operator.decide.served import Change, Fault, Item, Move, Put, Remove, Serve, Step
from lorarl_operator.manifests.published import recorded, schedule_label

API_VERSION, KIND = "model.aibrix.ai/v1alpha1", "ModelAdapter"
LABEL_ENTRY = "lorarl.io/publish"
"""Name of the entry of spec.publish."""
ANNOTATION_VERSION = "lorarl.io/version"
"""The version as JSON: a job that is applied again learns from it what its predecessor left."""


class ModelAdapters:
    """The ModelAdapters of a job."""

    def __init__(self, job: Job, objects: Iterable[Mapping[str, Any]]) -> None:
        """`objects`: what `selector` selects."""
        self._job = job
        self._objects = {raw["metadata"]["name"]: raw for raw in objects}
        self.items: Sequence[Item] = [item_of(raw) for raw in self._objects.values()]

    def place(self, entry: PublishSpec) -> str:
        """The same for all entries: pods are selected by labels, which can be changed in place."""
        return KIND

    def obstacle(self, entry: PublishSpec, version: PublishedVersion) -> Fault | None:
        """None: a ModelAdapter says nothing about what its servers can load."""
        return None

    def steps(self, moves: Iterable[Move]) -> list[Step]:
        """One for each object."""
        return [step for move in moves if (step := self._step(move))]

    def _step(self, move: Move) -> Step | None:
        if not isinstance(move, Serve):
            name = move.item.model
            return Remove((move.item.entry,), KIND, name, self._objects[name]["metadata"]["uid"])
        entries, name = (move.entry.name,), move.version.model
        wanted, there = model_adapter(self._job, move.entry, move.version), self._objects.get(name)
        if there is None:
            return Put(entries, KIND, name, wanted)
        going = "deletionTimestamp" in there["metadata"]  # Its name is free when it has gone.
        patch = None if going else change(there, wanted["spec"])
        return Change(entries, KIND, name, patch) if patch else None


def selector(job: Job) -> str:
    """Labels of all ModelAdapters of a job, also of an earlier one with its name, or of its schedule."""
    [(key, name)] = (schedule_label(job) or {LABEL_JOB: job.name}).items()
    return f"{LABEL_MANAGED_BY}={MANAGED_BY},{key}={name},{LABEL_ENTRY}"


def model_adapter(job: Job, entry: PublishSpec, version: PublishedVersion) -> dict[str, Any]:
    """The ModelAdapter of a version. No owner: it stays when the job is deleted."""
    target = entry.aibrix
    assert target is not None, "the entry's target is AIBrix"
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
                **schedule_label(job),
                LABEL_ENTRY: entry.name,
            },
            "annotations": {ANNOTATION_VERSION: json.dumps(version.model_dump(by_alias=True))},
        },
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def change(raw: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """The merge patch after which an object has the wanted spec; None if it has it already."""
    labels, spec = wanted["podSelector"]["matchLabels"], raw.get("spec") or {}
    before = (spec.get("podSelector") or {}).get("matchLabels") or {}
    secret = (spec.get("credentialsSecretRef") or {}).get("name")
    now = (before, spec.get("artifactURL"), spec.get("baseModel"), secret)
    ours = (wanted.get("credentialsSecretRef") or {}).get("name")
    if now == (labels, wanted["artifactURL"], wanted.get("baseModel"), ours):
        return None
    gone = dict.fromkeys({*before} - {*labels})
    absent = {key: None for key in ("baseModel", "credentialsSecretRef") if key not in wanted}
    patch = {**wanted, **absent, "podSelector": {"matchLabels": {**gone, **labels}}}
    return {"metadata": {"uid": raw["metadata"]["uid"]}, "spec": patch}


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
        target="aibrix",
        place=KIND,
        model=meta["name"],
        version=recorded((meta.get("annotations") or {}).get(ANNOTATION_VERSION, ""), meta["name"]),
        answers=runs,
        ready=runs and ready >= desired,
        failed=str(said.get("message") or "AIBrix does not say why") if phase == "Failed" else "",
        text=text if phase else "AIBrix has not looked at it yet",
        going="deletionTimestamp" in meta,
    )
