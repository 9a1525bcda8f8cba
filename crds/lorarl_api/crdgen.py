"""The CustomResourceDefinitions, generated from the models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from lorarl_api.schema import Schema, job_schema
from lorarl_api.template_schema import schedule_schema, sweep_schema, template_spec_schema
from lorarl_api.v1alpha1 import (
    API_VERSION,
    CLUSTER_TEMPLATE_KIND,
    GROUP,
    KIND,
    SCHEDULE_KIND,
    SWEEP_KIND,
    TEMPLATE_KIND,
    VERSION,
)

# Name, JSONPath, type, and whether only `kubectl get -o wide` shows it. kubectl puts NAME before them.
_COLUMNS = [
    ("Phase", ".status.phase", "string", False),
    ("Reason", '.status.conditions[?(@.type=="Running")].reason', "string", False),
    ("Step", ".status.progress", "string", False),
    ("GPUs", ".status.gpus", "integer", False),
    ("Reward", ".status.metrics.reward", "number", False),
    ("Adapter", ".status.adapter.step", "integer", False),
    ("Age", ".metadata.creationTimestamp", "date", False),
    ("RayJob", ".status.rayJobName", "string", True),
    ("Nodes", ".status.nodes", "integer", True),
    ("KL", ".status.metrics.kl", "number", True),
    ("Tok/s", ".status.metrics.tokensPerSecond", "number", True),
    ("Restarts", ".status.restarts", "integer", True),
    ("Left(s)", ".status.estimatedRemainingSeconds", "integer", True),
    ("URI", ".status.adapter.uri", "string", True),
    ("Serving", ".status.published[0].serving", "string", True),
]
_SWEEP_COLUMNS = [
    ("Phase", ".status.phase", "string", False),
    ("Trials", ".status.total", "integer", False),
    ("Finished", ".status.finished", "integer", False),
    ("Best", ".status.best.name", "string", False),
    ("Value", ".status.best.value", "number", False),
    ("Age", ".metadata.creationTimestamp", "date", False),
    ("Active", ".status.active", "integer", True),
    ("Stopped", ".status.stopped", "integer", True),
    ("Failed", ".status.failed", "integer", True),
    ("URI", ".status.best.uri", "string", True),
]
_SCHEDULE_COLUMNS = [
    ("Schedule", ".spec.schedule", "string", False),
    ("TimeZone", ".spec.timeZone", "string", False),
    ("Suspend", ".spec.suspend", "boolean", False),
    ("Phase", ".status.phase", "string", False),
    ("Last", ".status.lastScheduleTime", "date", False),
    ("LastJob", ".status.lastJob", "string", False),
    ("LastPhase", ".status.lastPhase", "string", False),
    ("Age", ".metadata.creationTimestamp", "date", False),
    ("Next", ".status.nextScheduleTime", "string", True),
    ("Reason", '.status.conditions[?(@.type=="Running")].reason', "string", True),
    ("Policy", ".spec.concurrencyPolicy", "string", True),
    ("ContinueFrom", ".spec.continueFrom", "string", True),
    ("URI", ".status.lastAdapter.uri", "string", True),
]
_TEMPLATE_COLUMNS = [
    ("Image", ".spec.cluster.image", "string", False),
    ("Locked", ".spec.locked", "string", False),
    ("Age", ".metadata.creationTimestamp", "date", False),
]
_TEMPLATES = {
    TEMPLATE_KIND: ("Values for the LoRARLJobs of its namespace that name it.", "Namespaced", "lrjt"),
    CLUSTER_TEMPLATE_KIND: ("Values for the LoRARLJobs of all namespaces that name it.", "Cluster", "clrjt"),
}
"""Description, scope and short name of each kind of template."""
UNSEEN = -1
"""`status.observedGeneration` of a job that no operator has seen."""
# Keys of JSON schema or of this package that a structural schema does not allow.
_DROPPED = ("examples", "expected", "hint")
# The order of the keys of a schema, for people who read the CRD. The other keys follow by name.
_ORDER = [
    "description",
    "type",
    "enum",
    "default",
    "minimum",
    "exclusiveMinimum",
    "maximum",
    "exclusiveMaximum",
    "required",
    "properties",
]


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition `lorarljobs.lorarl.io` (apiextensions.k8s.io/v1)."""
    return _with_status(KIND, "lrj", job_schema(), _COLUMNS)


def sweep_crd() -> dict[str, Any]:
    """The CustomResourceDefinition `lorarlsweeps.lorarl.io`."""
    return _with_status(SWEEP_KIND, "lrs", sweep_schema(), _SWEEP_COLUMNS)


def schedule_crd() -> dict[str, Any]:
    """The CustomResourceDefinition `lorarlschedules.lorarl.io`."""
    return _with_status(SCHEDULE_KIND, "lrsch", schedule_schema(), _SCHEDULE_COLUMNS)


def template_crd(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of templates, of one namespace or of the cluster."""
    description, scope, short = _TEMPLATES[kind]
    metadata = {"name": {"type": "string"}}
    names = {name: {"type": "string", "description": f"Always {value}."} for name, value in _type_of(kind).items()}
    root = {"description": description, "type": "object", "required": ["spec"]}
    properties = {
        **names,
        "metadata": {"type": "object", "properties": metadata},
        "spec": structural(template_spec_schema()),
    }
    return _definition(kind, short, {**root, "properties": properties}, _TEMPLATE_COLUMNS, scope=scope)


def _with_status(kind: str, short: str, whole: Schema, columns: list[tuple[str, str, str, bool]]) -> dict[str, Any]:
    schema = _root(whole)
    # Tools such as Flux take a status without a generation for one that is up to date.
    schema["properties"]["status"]["default"] = {"observedGeneration": UNSEEN}
    return _definition(kind, short, schema, columns, subresources={"status": {}}, selectable=[".status.phase"])


def definitions() -> dict[str, str]:
    """The texts of all CRDs by their file names in crds/."""
    made = [crd(), sweep_crd(), schedule_crd(), *map(template_crd, _TEMPLATES)]
    return {f"{GROUP}_{one['spec']['names']['plural']}.yaml": _as_text(one) for one in made}


def _definition(
    kind: str,
    short: str,
    schema: Schema,
    columns: list[tuple[str, str, str, bool]],
    *,
    scope: str = "Namespaced",
    subresources: dict[str, Any] | None = None,
    selectable: Sequence[str] = (),
) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    version = {"name": VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    if subresources:
        version["subresources"] = subresources
    if selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": ["lorarl"],  # not `all`: `kubectl delete all --all` would delete adapters
            },
            "scope": scope,
            "versions": [{**version, "additionalPrinterColumns": [_column(*column) for column in columns]}],
        },
    }


def _type_of(kind: str) -> dict[str, str]:
    return {"apiVersion": API_VERSION, "kind": kind}


def _as_text(definition: dict[str, Any]) -> str:
    header = "# Generated by `make generate` from crds/lorarl_api. Do not edit.\n"
    return header + yaml.safe_dump(definition, sort_keys=False, width=140, allow_unicode=True)


def _column(name: str, path: str, kind: str, wide: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})


def _root(schema: Schema) -> Schema:
    """The root schema. Kubernetes itself validates apiVersion, kind and metadata."""
    root = structural(schema)
    for own in ("apiVersion", "kind"):
        root["properties"][own] = {"type": "string", "description": schema["properties"][own]["description"]}
    root["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
    root["required"] = ["spec"]
    return root


def structural(schema: Schema) -> Schema:
    """`schema` as a structural schema of Kubernetes (OpenAPI 3.0: exclusive bounds are flags)."""
    result = {key: value for key, value in schema.items() if key not in _DROPPED}
    any_key = result.pop("additionalProperties", False)
    if isinstance(any_key, dict):
        result["additionalProperties"] = structural(any_key)
    if result.get("x-kubernetes-int-or-string"):
        del result["type"]
        result["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in result:
            result[bound.lower()] = result[f"exclusive{bound}"]
            result[f"exclusive{bound}"] = True
    if rules := _fractional_bounds(result):
        result["x-kubernetes-validations"] = [*result.get("x-kubernetes-validations", []), *rules]
    if "properties" in result:
        result["properties"] = {name: structural(inner) for name, inner in result["properties"].items()}
    if "items" in result:
        result["items"] = structural(result["items"])
        result.setdefault("x-kubernetes-list-type", "atomic")
    return dict(
        sorted(result.items(), key=lambda item: (_ORDER.index(item[0]) if item[0] in _ORDER else len(_ORDER), item[0]))
    )


def _fractional_bounds(schema: Schema) -> list[dict[str, str]]:
    """Take bounds such as 0.5 from a number's schema, and return them as rules.

    The API server cuts such a bound to an integer when it compares it with one: it refuses 0 as not below 0.5.
    """
    rules = []
    for bound, sign, words in (("minimum", ">", "above"), ("maximum", "<", "below")):
        if not float(schema.get(bound, 0)).is_integer():
            limit, exclusive = schema.pop(bound), schema.pop(f"exclusive{bound.title()}", False)
            compared = f"{words} {limit:g}" if exclusive else f"at {'least' if sign == '>' else 'most'} {limit:g}"
            rules.append({"rule": f"self {sign}{'' if exclusive else '='} {limit}", "message": f"must be {compared}"})
    return rules
