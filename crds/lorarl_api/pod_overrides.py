"""The faults of `cluster.podTemplateOverrides`, by Kubernetes' own schema of a pod template.

The CRD keeps these keys as they are, and the operator's API server checks them when the pods' objects are created. So
`lorarl validate` looks for what that would refuse, or would not mean what was meant. A newer Kubernetes may have fields
that this schema lacks; that is why the operator asks its API server and not this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from lorarl_api.faults import Fault, ManifestError, dotted, nearest, shown
from lorarl_api.pod_merge import merge
from lorarl_api.pod_resources import engine_resources, environment_resources, head_resources, worker_resources
from lorarl_api.quantities import quantity
from lorarl_api.v1alpha1 import LoRARLJob

CONTAINERS = {
    "head": "ray-head",
    "worker": "ray-worker",
    "engine": "ray-engine",
    "environment": "ray-environment",
}
"""Ray's container, by the pod that it is in."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_METADATA = ("labels", "annotations")
_WHOLE = ("V1PodSpec", "V1PodTemplateSpec")
"""Types of which an override has only a part, so that nothing is required."""
_TAKES: Mapping[str, tuple[tuple[type, ...], str, str]] = {
    "string": ((str,), "a string", "Write it in quotes."),
    "integer": ((int,), "a whole number", "Write a number without quotes."),
    "number": ((int, float), "a number", "Write a number without quotes."),
    "boolean": ((bool,), "true or false", "Write true or false, without quotes."),
}
"""By a kind of the schema: Python's types, how a fault names them, and the fix."""

type _Path = tuple[str | int, ...]


def override_faults(job: LoRARLJob) -> list[Fault]:
    """Return what Kubernetes would refuse in a job's overrides, and what cannot be merged into lorarl's own pods."""
    found: list[Fault] = []
    absent = {"engine": job.spec.separate_engines is None, "environment": job.spec.cluster.environments is None}
    for role in CONTAINERS:
        override = getattr(job.spec.cluster.pod_template_overrides, role)
        if override is None or absent.get(role):
            continue
        template, path = override.model_dump(exclude_none=True), ("spec", "cluster", "podTemplateOverrides", role)
        of_role = list(_faults("V1PodTemplateSpec", template, path))
        if not of_role:
            try:
                merged = merge({"spec": {"containers": [_own(job, role)]}}, template, dotted(path))
                of_role = list(template_faults(merged, dotted(path)))
            except ManifestError as error:
                of_role = list(error.faults)
        found += of_role
    return found


def template_faults(template: Mapping[str, Any], path: str) -> Iterator[Fault]:
    """Yield what no merged pod template may have: metadata that is KubeRay's, or containers that Kubernetes refuses.

    A finalizer would keep each pod that has ended, and a name only one pod can have. Ray's container has requests and
    an image of lorarl's own, where the job names none. Values of other types are left to the API server.
    """
    for key in _mapping(template.get("metadata")):
        if key not in _METADATA:
            yield Fault(f"{path}.metadata.{key}", "a value", "labels and annotations alone", "Remove it.")
    spec = template["spec"]
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            where = f"{path}.spec.{field}, {container['name']}"
            if not container.get("image"):
                rays = f", or name it {spec['containers'][0]['name']} for Ray's own" * (field == "containers")
                yield Fault(f"{where}, image", "nothing", "an image", f"Add image to this container{rays}.")
            yield from _limit_faults(_mapping(container.get("resources")), where)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _limit_faults(asked: Mapping[str, Any], where: str) -> Iterator[Fault]:
    requests = _mapping(asked.get("requests"))
    for resource, limit in _mapping(asked.get("limits")).items():
        request = requests.get(resource, limit)
        most, least = quantity(str(limit)), quantity(str(request))
        exact = "/" in resource  # an extended resource, such as GPUs, which cannot be overcommitted
        if most is not None and least is not None and (most < least or (exact and most != least)):
            yield Fault(
                f"{where}, resources.limits.{resource}",
                str(limit),
                f"{'' if exact else 'at least '}the container's request, {request}",
                f"Set resources.requests.{resource} to {limit} there too{'' if exact else ', or raise the limit'}.",
            )


def _own(job: LoRARLJob, role: str) -> dict[str, Any]:
    """Return Ray's container with what lorarl gives it that a check looks at."""
    queued = QUEUE_LABEL in (job.metadata.labels or {})
    asked = {
        "head": lambda: head_resources(job.spec),
        "worker": lambda: worker_resources(job.spec, queued=queued),
        "engine": lambda: engine_resources(job.spec, queued=queued),
        "environment": lambda: environment_resources(job.spec),
    }
    return {"name": CONTAINERS[role], "image": "lorarl's", "resources": asked[role]()}


@cache
def _types() -> Mapping[str, Any]:
    """Return the schema; scripts/pod_schema.py describes its form."""
    text = resources.files("lorarl_api").joinpath("pod_schema.json").read_text(encoding="utf-8")
    types: Mapping[str, Any] = json.loads(text)["types"]
    return types


def _faults(kind: str, value: Any, path: _Path) -> Iterator[Fault]:
    """Yield the faults of a value of the schema's `kind`. A null removes a key of lorarl's."""
    outer, _, inner = kind.partition(":")
    if value is None or kind == "any":
        return
    if "|" in kind:
        yield from _of_several(kind.split("|"), value, path)
    elif outer == "list":
        yield from _of_list(inner, value, path)
    elif outer == "map" or kind in _types():
        yield from _of_mapping(kind, inner, value, path)
    else:
        yield from _of_scalar(kind, value, path)


def _of_list(inner: str, value: Any, path: _Path) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield _fault(path, value, "a list", "Put a dash before each entry.")
        return
    for index, entry in enumerate(value):
        yield from _faults(inner, entry, (*path, index))


def _of_mapping(kind: str, inner: str, value: Any, path: _Path) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield _fault(path, value, "a mapping", "Write it as in a Kubernetes PodTemplateSpec.")
    elif inner:
        for key, entry in value.items():
            yield from _faults(inner, entry, (*path, key))
    else:
        yield from _of_type(kind, value, path)


def _of_scalar(kind: str, value: Any, path: _Path) -> Iterator[Fault]:
    if kind == "quantity":
        if isinstance(value, bool | list | Mapping) or quantity(str(value)) is None:
            yield _fault(path, value, "a Kubernetes quantity", 'Write a quantity such as 64Gi, 500m or "2".')
        return
    types, expected, hint = _TAKES[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        yield _fault(path, value, expected, hint)


def _of_several(kinds: Sequence[str], value: Any, path: _Path) -> Iterator[Fault]:
    if all(any(True for _ in _faults(kind, value, path)) for kind in kinds):
        expected = " or ".join(_TAKES[kind][1] for kind in kinds)
        yield _fault(path, value, expected, "Write it as in a Kubernetes PodTemplateSpec.")


def _of_type(kind: str, value: Mapping[str, Any], path: _Path) -> Iterator[Fault]:
    known = _types()[kind]
    for key, entry in value.items():
        if key in known["fields"]:
            yield from _faults(known["fields"][key], entry, (*path, key))
        else:
            yield _unknown(kind, str(key), path)
    for key in () if kind in _WHOLE else known["required"]:
        if value.get(key) is None:
            yield Fault(dotted((*path, key)), "nothing", "a value", _missing(kind, key, path))


def _unknown(kind: str, key: str, path: _Path) -> Fault:
    fields = _types()[kind]["fields"]
    got, expected = "an unknown key", f"a field of Kubernetes' {_words(kind)}"
    if meant := nearest(key, list(fields)):
        return Fault(dotted((*path, key)), got, expected, f"Did you mean {meant}?")
    homes = [
        _words(other) for other in ("V1PodSpec", "V1Container", "V1ObjectMeta") if key in _types()[other]["fields"]
    ]
    hint = f"Move it: it is a field of {homes[0]}." if homes else "Remove it."
    return Fault(dotted((*path, key)), got, expected, hint)


def _missing(kind: str, key: str, path: _Path) -> str:
    if kind == "V1Container" and key == "name":
        role = next((step for step in path if step in CONTAINERS), "worker")
        return f"Add name: {CONTAINERS[str(role)]} for Ray's own container, or the name of another one."
    return f"Add {key}."


def _words(kind: str) -> str:
    return re.sub(r"^(?:Core)?V\d+", "", kind)


def _fault(path: _Path, value: Any, expected: str, hint: str) -> Fault:
    if hint == "Write it in quotes." and not isinstance(value, list | Mapping):
        hint = f'Write it in quotes: "{str(value).lower() if isinstance(value, bool) else value}".'
    return Fault(dotted(path), shown(value, path), expected, hint)
