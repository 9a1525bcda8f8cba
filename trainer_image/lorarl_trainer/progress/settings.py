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
        return [flat(fields) for fields in written]
    return [flat(job.model_dump(by_alias=True, mode="json", exclude_none=True)) for job in jobs]


def flat(fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by their path below `path`; lists are leaves."""
    found: dict[str, Any] = {}
    for key, value in fields.items():
        name = f"{path}.{key}".lstrip(".")
        found |= flat(value, name) if isinstance(value, Mapping) else {name: value}
    return found
