"""The JSON schema of the contract with all references inlined, and its types in words."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJob, Model

Schema = dict[str, Any]


@cache
def job_schema() -> Schema:
    """The schema of a whole manifest.

    References are inlined, `null` is left out (absent and null are the same), and each field with a default has it.
    Beyond JSON schema there are `expected` (a pattern in words), `hint` (what to do), `examples` and Kubernetes' own
    `x-kubernetes-*`.
    """
    return inlined_schema(LoRARLJob)


def inlined_schema(model: type[Model]) -> Schema:
    """The schema of any model of the contract, in the form of `job_schema`."""
    schema = model.model_json_schema(by_alias=True)
    return _inlined(schema, schema.pop("$defs", {}))


def _inlined(node: Schema, definitions: dict[str, Schema]) -> Schema:
    if alternatives := node.get("anyOf"):  # Always an optional field: something or null.
        (something,) = (alternative for alternative in alternatives if alternative.get("type") != "null")
        siblings = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return _inlined({**something, **siblings}, definitions)
    if reference := node.get("$ref"):
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _inlined({**definitions[reference.rpartition("/")[2]], **siblings}, definitions)
    node = {key: value for key, value in node.items() if key != "title"}
    if "const" in node:
        node["enum"] = [node.pop("const")]
    if "properties" in node:
        required = node.get("required", [])
        node["properties"] = {
            name: _property(inner, name in required, definitions) for name, inner in node["properties"].items()
        }
    if "items" in node:
        node["items"] = _inlined(node["items"], definitions)
    return node


def _property(node: Schema, required: bool, definitions: dict[str, Schema]) -> Schema:
    inlined = _inlined(node, definitions)
    if not required and "anyOf" not in node and "default" not in node:
        # Pydantic does not show what a factory makes: here an empty list, or an object whose fields all have defaults.
        # The API server would complete an empty object too, but it checks the rules on the default as written.
        fields = inlined.get("properties", {}).items()
        inlined["default"] = (
            []
            if inlined["type"] == "array"
            else {key: deepcopy(field["default"]) for key, field in fields if "default" in field}
        )
    return inlined


def schema_at(path: Sequence[str | int], whole: Schema | None = None) -> Schema | None:
    """The schema of the field at `path` (keys, and indices of lists); None if the contract has no such field.

    `whole`: the schema of the manifest. Default: that of a job.
    """
    schema: Schema | None = job_schema() if whole is None else whole
    for step in path:
        if schema is None:
            return None
        any_key = schema.get("additionalProperties")
        schema = (
            schema.get("items") if isinstance(step, int) else schema.get("properties", {}).get(step, any_key or None)
        )
    return schema


def in_words(schema: Schema) -> str:
    """What a field takes, to follow "expected": `an integer from 1 to 512`."""
    if "expected" in schema:
        return str(schema["expected"])
    if "enum" in schema:
        *most, last = schema["enum"]
        return f"{', '.join(most)} or {last}" if most else str(last)
    if schema.get("format") == "date-time":
        return "a time such as 2026-01-31T12:00:00Z"
    match schema.get("type"):
        case "integer":
            return f"an integer{_number_range(schema)}"
        case "number":
            return f"a number{_number_range(schema)}"
        case "string":
            return f"a string{_length(schema, 'minLength', 'maxLength', 'character')}"
        case "array":
            return f"a list{_length(schema, 'minItems', 'maxItems', 'entry')}"
        case "boolean":
            return "true or false"
        case _:
            if "properties" in schema:
                return f"a mapping with keys such as {', '.join(list(schema['properties'])[:3])}"
            return f"a mapping{_length(schema, 'minProperties', 'maxProperties', 'entry')}"


def _number_range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}" if schema["type"] == "number" else f" from {low} to {high}"
    words = [
        f"above {schema['exclusiveMinimum']:g}" if "exclusiveMinimum" in schema else "",
        f"of at least {low:g}" if low is not None else "",
        f"below {schema['exclusiveMaximum']:g}" if "exclusiveMaximum" in schema else "",
        f"at most {high:g}" if high is not None else "",
    ]
    text = " and ".join(word for word in words if word)
    return f" {text}" if text else ""


def _length(schema: Schema, lowest: str, highest: str, unit: str) -> str:
    low, high = schema.get(lowest, 0), schema.get(highest)
    plural = "entries" if unit == "entry" else f"{unit}s"
    if high is None:
        return f" of at least {low} {plural}" if low else ""
    return f" of {low} to {high} {plural}" if low else f" of at most {high} {plural}"
