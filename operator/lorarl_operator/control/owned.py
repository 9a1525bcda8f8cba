"""What an object that exists has of a manifest, and what it has left of an earlier one."""

from __future__ import annotations

from typing import Any

from lorarl_operator.kube.client import FIELD_MANAGER


def controller(manifest: dict[str, Any]) -> str:
    """Uid of the controller that owns this object; empty without one."""
    owners = manifest["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def has(found: Any, wanted: Any) -> bool:
    """Whether all wanted values are present. Keys that others added to mappings do no harm."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(key in found and has(found[key], value) for key, value in wanted.items())
    return bool(found == wanted)


def left_over(found: dict[str, Any], wanted: dict[str, Any]) -> set[str]:
    """The annotations that the operator once wrote, and that the manifest has no longer.

    By one of a ServiceAccount, a cloud gives its pods a role. A later apply alone removes none: the API server keeps
    what came with the creation.
    """
    ours: set[str] = set()
    for entry in found["metadata"].get("managedFields") or ():
        if entry.get("manager") == FIELD_MANAGER:
            fields = ((entry.get("fieldsV1") or {}).get("f:metadata") or {}).get("f:annotations") or {}
            ours |= {key.removeprefix("f:") for key in fields if key.startswith("f:")}
    return ours & set(found["metadata"].get("annotations") or ()) - set(wanted["metadata"].get("annotations") or ())
