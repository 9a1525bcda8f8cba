"""The CustomResourceDefinition, made from the models."""

from __future__ import annotations

from typing import Any

import yaml

from lorarl_api.schema import Schema, job_schema
from lorarl_api.v1alpha1 import GROUP, KIND, VERSION

# Name, where it lies, its type, and whether only `kubectl get -o wide` shows it. kubectl puts NAME before them.
_COLUMNS = [
    ("Phase", ".status.phase", "string", False),
    ("Step", ".status.step", "integer", False),
    ("Reward", ".status.metrics.reward", "number", False),
    ("Adapter", ".status.adapter.step", "integer", False),
    ("Age", ".metadata.creationTimestamp", "date", False),
    ("RayJob", ".status.rayJobName", "string", True),
    ("KL", ".status.metrics.kl", "number", True),
    ("Tok/s", ".status.metrics.tokensPerSecond", "number", True),
    ("Restarts", ".status.restarts", "integer", True),
    ("URI", ".status.adapter.uri", "string", True),
]
# What JSON schema or this package knows and a structural schema does not take.
_DROPPED = ("examples", "expected")
# How the keys of one schema are ordered, for people who read the CRD; the rest follows by name.
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
    plural = f"{KIND.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": plural,
                "singular": KIND.lower(),
                "shortNames": ["lrj"],
                "categories": ["all", "lorarl"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(job_schema())},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD as the text of crds/lorarl.io_lorarljobs.yaml."""
    header = "# Made by `make generate` from crds/lorarl_api; edit that.\n"
    return header + yaml.safe_dump(crd(), sort_keys=False, width=140, allow_unicode=True)


def _column(name: str, path: str, kind: str, wide: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if wide else {})


def _root(schema: Schema) -> Schema:
    """A root as Kubernetes has it: apiVersion, kind and metadata are its own matter."""
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
    if "properties" in result:
        result["properties"] = {name: structural(inner) for name, inner in result["properties"].items()}
    if "items" in result:
        result["items"] = structural(result["items"])
        result.setdefault("x-kubernetes-list-type", "atomic")
    return dict(
        sorted(result.items(), key=lambda item: (_ORDER.index(item[0]) if item[0] in _ORDER else len(_ORDER), item[0]))
    )
