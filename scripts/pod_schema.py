"""Write Kubernetes' schema of a pod template from the official client's models; with --check, compare it.

`lorarl validate` looks into `podTemplateOverrides` with it, also where the client is not installed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes.client import V1PodTemplateSpec

from lorarl_api.page import update

_FILE = Path(__file__).parents[1] / "crds/lorarl_api/pod_schema.json"
_QUANTITIES = ("limits", "requests", "overhead", "sizeLimit", "divisor")
"""Fields that the API server reads as quantities. The client has them as strings."""


def schema() -> dict[str, Any]:
    """Return, by type, its fields with their kinds, and those that are required.

    A kind is a type's name, `string`, `integer`, `number`, `boolean`, `quantity`, `any`, several of these with `|`
    between them, or one of them after `list:` or `map:`.
    """
    whole = V1PodTemplateSpec.model_json_schema(by_alias=True)
    types = {"V1PodTemplateSpec": whole, **whole["$defs"]}
    return {
        "client": importlib.metadata.version("kubernetes"),
        "types": {
            name: {
                "fields": {field: _kind(field, value) for field, value in sorted(one["properties"].items())},
                "required": sorted(one.get("required", [])),
            }
            for name, one in sorted(types.items())
            if "properties" in one
        },
    }


def _kind(field: str, value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        return str(value["$ref"]).rpartition("/")[2]
    if "anyOf" in value:
        return "|".join(_kind(field, one) for one in value["anyOf"] if one.get("type") != "null")
    if value.get("type") == "array":
        return f"list:{_kind(field, value['items'])}"
    if value.get("type") == "object":
        inner = value.get("additionalProperties")
        return f"map:{_kind(field, inner) if isinstance(inner, dict) else 'any'}"
    kind = str(value.get("type", "any"))
    return "quantity" if kind == "string" and field in _QUANTITIES else kind


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file, or compare it.

    Returns:
        The exit code: 1 if --check finds a difference.
    """
    parser = argparse.ArgumentParser(prog="scripts/pod_schema.py", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the file is out of date")
    options = parser.parse_args(arguments)
    return update({_FILE: json.dumps(schema(), separators=(",", ":")) + "\n"}, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
