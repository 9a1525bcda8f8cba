"""A manifest's settings as flat names, for tables and trackers: {"spec.adapter.rank": 8, ...}."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import yaml

from lorarl_api.v1alpha1 import LoRARLJob


def flat_settings(manifest: str) -> dict[str, Any]:
    """Return each field of a manifest in YAML by its path, with the defaults of fields that it leaves out.

    A manifest of another version of lorarl, which this one refuses, is returned as it is written.
    """
    fields = yaml.safe_load(manifest) or {}
    with contextlib.suppress(ValueError):
        fields = LoRARLJob.model_validate(fields).model_dump(by_alias=True, mode="json", exclude_none=True)
    return _flat(fields, "")


def _flat(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        name: leaf for key, part in value.items() for name, leaf in _flat(part, f"{path}.{key}".lstrip(".")).items()
    }
