"""A manifest's settings as flat names, for tables and trackers: {"spec.adapter.rank": 8, ...}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from lorarl_api.v1alpha1 import LoRARLJob


def flat_settings(manifests: Sequence[str]) -> list[dict[str, Any]]:
    """Return each field of manifests in YAML by its path, with the defaults of fields that they leave out.

    Without defaults if one of them is of another version of lorarl, and refused by this one: the defaults of the others
    alone would look like differences.
    """
    written = [yaml.safe_load(manifest) or {} for manifest in manifests]
    try:
        jobs = [LoRARLJob.model_validate(fields) for fields in written]
    except ValueError:
        return [_flat(fields, "") for fields in written]
    return [_flat(job.model_dump(by_alias=True, mode="json", exclude_none=True), "") for job in jobs]


def _flat(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        name: leaf for key, part in value.items() for name, leaf in _flat(part, f"{path}.{key}".lstrip(".")).items()
    }
