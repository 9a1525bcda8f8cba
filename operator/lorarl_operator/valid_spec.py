"""A job's spec as the contract's models have it, or what is wrong with it: an older CRD may have let in what this operator cannot read."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from lorarl_api.faults import ManifestError
from lorarl_api.load import faults
from lorarl_api.v1alpha1 import API_VERSION, KIND, RULES_LATER, LoRARLJob, LoRARLJobSpec
from lorarl_operator.models import Job


def checked_spec(job: Job) -> LoRARLJobSpec:
    """The spec, valid.

    Raises:
        ManifestError: It is not. All its faults are in it.
    """
    found = _checked(job.name, job.spec)
    if isinstance(found, ManifestError):
        raise found
    return found


# A job is looked at several times while it is made; after that its spec is not needed as a model.
@lru_cache(maxsize=64)
def _checked(name: str, spec: bytes) -> LoRARLJobSpec | ManifestError:
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": json.loads(spec)}
    if found := faults(document):
        return ManifestError(found)
    return LoRARLJob.model_validate(document, by_alias=True, by_name=False, context=RULES_LATER).spec


def whole(value: Any, default: int | None = None) -> int | None:
    """A whole number out of a spec that nobody has checked yet."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else default


def part(spec: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping out of a spec that nobody has checked yet."""
    value = spec.get(key)
    return value if isinstance(value, dict) else {}
