"""The smallest valid manifest, and common changes of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Changes = dict[str, Any]
"""Dotted path -> value. None removes the field."""


@dataclass(frozen=True)
class Case:
    """One rule: changes that break it, changes that keep it, the field in the message, and a part of the hint."""

    name: str
    bad: Changes
    good: Changes
    field: str
    hint: str


SMALLEST: dict[str, Any] = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "LoRARLJob",
    "metadata": {"name": "smallest"},
    "spec": {
        "model": {"uri": "file:out/base"},
        "adapter": {"targetModules": ["all-linear"]},
        "reward": {"type": "exact"},
        "data": {"train": {"uri": "file:out/train.jsonl"}},
        "checkpoint": {"uri": "s3://team/adapters"},
    },
}

UNSEEN: dict[str, Any] = {"observedGeneration": -1, "conditions": []}
"""The status of a job that no operator has seen, by the CRD's default. kstatus takes it for one in progress."""


def manifest(changes: Changes | None = None) -> dict[str, Any]:
    """The smallest valid manifest with `changes`."""
    return changed(copy.deepcopy(SMALLEST), changes or {})


def changed(document: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """`document` itself, with `changes`."""
    for path, value in changes.items():
        *above, last = path.split(".")
        inner = document
        for key in above:
            inner = inner.setdefault(key, {})
        if value is None:
            inner.pop(last, None)
        else:
            inner[last] = copy.deepcopy(value)
    return document


TWO = [{"name": "right", "type": "exact"}, {"name": "tidy", "weight": 0.5, "function": "m:f"}]
SFT = {"spec.algorithm": {"type": "sft"}, "spec.reward": None}
DPO = {"spec.algorithm": {"type": "dpo"}, "spec.reward": None}
TEACHER = {"url": "http://teacher:8000/v1", "model": "big"}
TAUGHT = {
    "spec.algorithm": {"type": "distillation", "distillation": {"adapter": "s3://team/teacher"}},
    "spec.reward": None,
}
HUB = {"spec.data.train": {"uri": "hf://openai/gsm8k"}}
GPUS = {"spec.cluster": {"nodes": 2, "gpusPerNode": 4}}
EVAL = {"spec.data.eval": {"uri": "file:out/held_out.jsonl"}}
MLFLOW = {"spec.tracking.mlflow": {"trackingUri": "https://mlflow.example.com", "experiment": "x"}}
VOLUMES = {"spec.cluster.podTemplateOverrides": {"head": {"spec": {}}, "worker": {"spec": {}}}}
"""What a cluster needs for checkpoints in a folder of the pods. The operator looks at what is in it."""
