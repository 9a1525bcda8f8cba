"""Relative paths in a manifest whose pods mount volumes: a pod has another working directory, without these files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lorarl_api.faults import Fault, dotted, shown
from lorarl_api.pod_overrides import CONTAINERS
from lorarl_api.v1alpha1 import LoRARLJob

_SCHEME = "file:"

type _Path = tuple[str | int, ...]


def relative_path_faults(job: LoRARLJob) -> Iterator[Fault]:
    """Yield a fault for each relative `file:` URI of a job whose pods mount volumes, so that it is for a cluster."""
    if not (mounted := sorted(set(_mounts(job)))):
        return
    for path, uri in _relative(job.spec.model_dump(by_alias=True, exclude_none=True, exclude={"cluster"}), ("spec",)):
        example = f"file://{mounted[0].rstrip('/')}/{uri.removeprefix(_SCHEME).removeprefix('./')}"
        expected = "an absolute path, since this job's pods mount volumes and have another working directory"
        hint = f"Name the file on a volume, for example {example}. The pods mount {', '.join(mounted)}."
        yield Fault(dotted(path), shown(uri), expected, hint)


def _mounts(job: LoRARLJob) -> Iterator[str]:
    """Yield where containers of the pods have the volumes that the manifest adds."""
    for role in CONTAINERS:
        override = getattr(job.spec.cluster.pod_template_overrides, role)
        spec = (override.model_dump(exclude_none=True).get("spec") or {}) if override else {}
        if not spec.get("volumes"):
            continue
        for container in spec.get("containers") or ():
            yield from (str(mount["mountPath"]) for mount in container.get("volumeMounts") or ())


def _relative(value: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _relative(inner, (*path, key))
    elif isinstance(value, str) and value.startswith(_SCHEME) and not value.startswith(f"{_SCHEME}/"):
        yield path, value
