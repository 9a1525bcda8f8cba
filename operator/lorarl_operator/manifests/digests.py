"""What a RayJob was made from, in a few characters, so that a later change of the job is noticed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lorarl_api.v1alpha1 import SCHEDULING_PREFIXES, LoRARLJobSpec
from lorarl_operator.decide.models import Job

_DIGITS = 12


def pods_digest(spec: LoRARLJobSpec) -> str:
    """Digest of what the pods follow from and what may change.

    Defaults are left out: a field that a newer version adds changes no digest.
    """
    changing: dict[str, Any] = {
        "cluster": spec.cluster.model_dump(mode="json", exclude_defaults=True),
        "tracking": spec.tracking.model_dump(mode="json", exclude_defaults=True),
        "workers": spec.workers_per_node,
    }
    if spec.template_ref:
        changing["template"] = spec.template_ref.model_dump(mode="json")
    return _digest(changing)


def passed_digest(job: Job) -> str:
    """Digest of the labels and annotations for queues and schedulers.

    A RayJob that another one replaces loses its place in the queue. A change of any other label is not worth that.
    """
    passed = (job.passed_labels, job.passed_annotations)
    return _digest([[pair for pair in pairs if pair[0].startswith(SCHEDULING_PREFIXES)] for pairs in passed])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_DIGITS]
