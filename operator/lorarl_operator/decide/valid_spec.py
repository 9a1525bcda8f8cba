"""A job's spec as the contract's models, or its faults. An older CRD may have admitted a spec that we cannot read."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from lorarl_api.defaults import knows
from lorarl_api.faults import ManifestError
from lorarl_api.load import faults
from lorarl_api.v1alpha1 import API_VERSION, KIND, RULES_LATER, LoRARLJob, LoRARLJobSpec
from lorarl_operator.decide.models import Job

SCHEMA_SECONDS = 60.0
"""When to look again at a spec with unknown fields. The schema that says which have their default may come later."""


def checked_spec(job: Job) -> LoRARLJobSpec:
    """The valid spec.

    Raises:
        ManifestError: The spec is not valid. The error has all its faults.
    """
    checked = _checked(job.name, job.spec)
    if isinstance(checked, ManifestError):
        raise checked
    return checked


# The operator looks at a job several times while it creates its objects. After that it does not need the models.
@lru_cache(maxsize=64)
def _checked(name: str, spec: bytes) -> LoRARLJobSpec | ManifestError:
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": json.loads(spec)}
    if found := faults(document):
        return ManifestError(found)
    return LoRARLJob.model_validate(document, by_alias=True, by_name=False, context=RULES_LATER).spec


def if_newer(spec: dict[str, Any], kind: str = KIND) -> str:
    """What to do about fields that this operator does not know; empty if it knows all."""
    return "" if knows(spec, kind) else "If the CRD is newer than the operator, upgrade the operator."


def whole_number(value: Any, default: int | None = None) -> int | None:
    """A value of an unchecked spec if it is a whole number from 0 to 2^31 - 1; otherwise the default."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else default


def section(spec: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping in an unchecked spec; empty if the value is not a mapping."""
    value = spec.get(key)
    return value if isinstance(value, dict) else {}
