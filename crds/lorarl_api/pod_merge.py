"""`cluster.podTemplateOverrides`: parts of a pod template that override lorarl's own.

It is a small part of Kubernetes' strategic merge. Mappings are merged, and a null removes a key. Lists are handled as
follows:
- containers are merged by name, and new ones are appended, so that Ray's container stays the first;
- entries of the other lists below replace the entry with the same key, or are appended;
- any other list is replaced as a whole.
"""

from __future__ import annotations

from typing import Any

from lorarl_api.faults import Fault, ManifestError, shown

MERGED_BY = {"containers": "name", "initContainers": "name"}
REPLACED_BY = {
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
}


def merge(base: dict[str, Any], override: dict[str, Any], path: str, *, keep_nulls: bool = False) -> dict[str, Any]:
    """Merge `override` into a copy of `base`.

    `path`: Path of the override in the manifest, for messages. `keep_nulls`: Keep a null, because `base` is an override
    too, and another base will lose the key.

    Raises:
        ManifestError: An entry of a merged list is not a mapping, or lacks its key.
    """
    merged = dict(base)
    for key, value in override.items():
        inner = f"{path}.{key}"
        if value is None and keep_nulls:
            merged[key] = None
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value, inner, keep_nulls=keep_nulls)
        elif isinstance(merged.get(key), dict):
            raise _fault(inner, value, "a mapping", "Write it as in a Kubernetes PodTemplateSpec.")
        elif key in MERGED_BY or key in REPLACED_BY:
            merged[key] = _merge_list(key, merged.get(key) or [], value, inner, keep_nulls)
        else:
            merged[key] = value
    return merged


def _merge_list(
    field: str, base: list[dict[str, Any]], override: Any, path: str, keep_nulls: bool
) -> list[dict[str, Any]]:
    key = MERGED_BY.get(field) or REPLACED_BY[field]
    if not isinstance(override, list):
        raise _fault(path, override, f"a list of mappings with {key}", "Write it as in a Kubernetes PodSpec.")
    merged = {_identity(entry, key): entry for entry in base}
    for index, entry in enumerate(override):
        if not isinstance(entry, dict) or not isinstance(entry.get(key), str | int):
            hint = "Name the container: Ray's is ray-head or ray-worker." if field == "containers" else f"Add {key}."
            raise _fault(f"{path}[{index}]", entry, f"a mapping with {key}", hint)
        own = _identity(entry, key)
        old = merged.get(own)
        into_old = old is not None and field in MERGED_BY
        merged[own] = merge(old or {}, entry, f"{path}[{index}]", keep_nulls=keep_nulls) if into_old else entry
    return list(merged.values())


def _identity(entry: dict[str, Any], key: str) -> object:
    """What an entry of a list is known by. A port may be open for TCP and for UDP."""
    return (entry[key], entry.get("protocol", "TCP")) if key == "containerPort" else entry[key]


def _fault(path: str, got: Any, expected: str, hint: str) -> ManifestError:
    return ManifestError([Fault(path, shown(got), expected, hint)])
