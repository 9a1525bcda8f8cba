"""A job with the values of its template.

The job's own value wins wherever it differs from the default: the API server writes defaults into every job, so that a
default looks like a field that is set. Mappings are merged by key. Of lists, the template's entries come
first. `podTemplateOverrides` are merged as they are into a pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from lorarl_api.defaults import explicit
from lorarl_api.faults import Fault, ManifestError, dotted, shown
from lorarl_api.pod_merge import merge
from lorarl_api.v1alpha1 import KEYS, PARTS, TemplateRef, TemplateSpec

_OVERRIDES = "cluster.podTemplateOverrides"


@dataclass(frozen=True)
class Template:
    """A template as it is in a cluster or a file.

    Attributes:
        kind: LoRARLJobTemplate or ClusterLoRARLJobTemplate.
        spec: its spec, as YAML has it.
    """

    kind: str
    name: str
    spec: dict[str, Any]

    def __str__(self) -> str:
        """The template, for messages."""
        return f"{self.kind} {self.name}"


def reference(spec: Mapping[str, Any]) -> TemplateRef | None:
    """The template that a job's spec names; None if it names none, or what it has there is no name."""
    try:
        return TemplateRef.model_validate(spec["templateRef"], by_alias=True, by_name=False)
    except (KeyError, ValidationError):
        return None


def merged_spec(spec: dict[str, Any], template: Template) -> dict[str, Any]:
    """The spec of a job, with the template's values where it has none.

    Raises:
        ManifestError: Entries of podTemplateOverrides cannot be merged.
    """
    own, given = _explicit(spec), _explicit(template.spec)
    parts = {part: _merged(given.get(part) or {}, own.get(part) or {}, part) for part in PARTS}
    return spec | parts


def merged_keys(own: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """The labels or annotations of a job, with those of its template."""
    return {**(given or {}), **own}


def require_unlocked(
    spec: dict[str, Any], labels: Mapping[str, str], annotations: Mapping[str, str], template: Template
) -> None:
    """Refuse a job that sets what its template has locked, unless it is the template's own value.

    Raises:
        ManifestError: It does. The error names each such field.
    """
    own, given = _explicit(spec), _explicit(template.spec)
    keys = dict(zip(KEYS, (labels, annotations), strict=True))
    faults = []
    for path in template.spec.get("locked") or []:
        if path in KEYS:
            of_template = template.spec.get(path) or {}
            faults += [
                _locked(("metadata", path, key), value, template)
                for key, value in keys[path].items()
                if key in of_template and of_template[key] != value
            ]
        elif (value := _at(own, path)) not in (None, {}, []) and value != _at(given, path):
            faults.append(_locked(("spec", *path.split(".")), value, template))
    if faults:
        raise ManifestError(faults)


def template_of(document: Mapping[str, Any]) -> Template:
    """The template of a parsed manifest.

    Raises:
        ManifestError: It is not valid.
    """
    name = str((document.get("metadata") or {}).get("name") or "")
    template = Template(str(document.get("kind")), name, document.get("spec") or {})
    try:
        TemplateSpec.model_validate(template.spec, by_alias=True, by_name=False)
    except ValidationError as error:
        faults = [
            Fault(
                dotted(("spec", *details["loc"])),
                shown(details["input"]),
                "a field of templates" if details["type"] == "extra_forbidden" else "what a template may have there",
                f"Correct {template}: docs/templates.md.",
            )
            for details in error.errors(include_url=False)
        ]
        raise ManifestError(faults) from error
    return template


def _locked(path: tuple[str, ...], value: Any, template: Template) -> Fault:
    where = path if path[0] == "spec" else path[:-1]
    got = shown(value) if path[0] == "spec" else f"{path[-1]}: {shown(value)}"
    hint = "Remove it, or ask who maintains the template."
    return Fault(dotted(where), got, f"keep the value of {template}, which locks it", hint, "must")


def _explicit(spec: dict[str, Any]) -> dict[str, Any]:
    """The parts that a template may have, without defaults. Anything else than mappings is left to validation."""
    return explicit({part: spec[part] for part in PARTS if isinstance(spec.get(part), dict)})


def _merged(given: Any, own: Any, path: str) -> Any:
    if path == _OVERRIDES and isinstance(given, dict) and isinstance(own, dict):
        return merge(given, own, f"spec.{path}", keep_nulls=True)
    if isinstance(given, dict) and isinstance(own, dict):
        both = {
            key: _merged(given[key], value, f"{path}.{key}") if key in given else value for key, value in own.items()
        }
        return {**given, **both}
    if isinstance(given, list) and isinstance(own, list):
        return [*given, *(entry for entry in own if entry not in given)]
    return own


def _at(parts: dict[str, Any], path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    value: Any = parts
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
