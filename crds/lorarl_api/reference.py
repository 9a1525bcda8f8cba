"""docs/reference.md: every field and rule of the manifest, made from the models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lorarl_api.schema import Schema, in_words, job_schema
from lorarl_api.v1alpha1 import API_VERSION, KIND

_HEAD = f"""# Reference: `{KIND}` ({API_VERSION})

Made by `make generate` from `crds/lorarl_api`; edit that.

A manifest has `apiVersion: {API_VERSION}`, `kind: {KIND}`, `metadata.name` and the groups below. Unknown keys are refused; `null` is the
same as leaving a field out. `lorarl validate FILE...` says what is wrong with a manifest; `kubectl apply` says the same, from the same
rules. `kubectl explain lorarljob.spec.rollout` shows a group in a terminal.
"""
_TYPES = {
    "string": "text",
    "integer": "integer",
    "number": "number",
    "boolean": "true/false",
    "array": "list",
    "object": "group",
}


def reference() -> str:
    """The text of docs/reference.md."""
    schema = job_schema()
    sections = [*_sections("metadata", schema["properties"]["metadata"]), *_rules(schema)]
    sections += [*_sections("spec", schema["properties"]["spec"]), *_sections("status", schema["properties"]["status"])]
    return "\n".join([_HEAD, *sections]).rstrip() + "\n"


def _sections(path: str, schema: Schema) -> Iterator[str]:
    """A table of the group's own fields, its rules, and the groups within it."""
    fields = schema["properties"]
    yield f"## {path}\n\n{schema['description']}\n"
    yield "| field | type | default | range | meaning |\n|---|---|---|---|---|"
    required = schema.get("required", [])
    for name, field in fields.items():
        yield f"| `{name}` | {_type(field)} | {_default(field, name in required)} | {_range(field)} | {_cell(field['description'])} |"
    yield ""
    yield from _rules(schema)
    for name, field in fields.items():
        group = field["items"] if field["type"] == "array" else field
        if "properties" in group:
            yield from _sections(f"{path}.{name}" + ("[]" if field["type"] == "array" else ""), group)


def _rules(schema: Schema) -> Iterator[str]:
    rules = schema.get("x-kubernetes-validations", [])
    of_updates = [rule for rule in rules if "oldSelf" in rule["rule"]]
    between = [rule for rule in rules if rule not in of_updates]
    for title, listed in (("Rules:", between), ("What an update in the cluster may not change:", of_updates)):
        if listed:
            yield f"{title}\n"
            for rule in listed:
                field = rule["fieldPath"].removeprefix(".")
                yield f"- `{field}`: {rule['message'].removeprefix('expected ').removeprefix(f'{field} is ')}."
            yield ""


def _type(field: Schema) -> str:
    kind = _TYPES[field["type"]]
    if field.get("format") == "date-time":
        return "time"
    if kind == "list":
        return f"list of {_TYPES[field['items']['type']]}s"
    return kind if "properties" in field or kind != "group" else "mapping"


def _default(field: Schema, required: bool) -> str:
    if required:
        return "**required**"
    default: Any = field.get("default")
    if default is None or field["type"] == "object":
        return ""
    return f"`{json.dumps(default) if not isinstance(default, str) else default}`"


def _range(field: Schema) -> str:
    """The bounds alone: the type has a column of its own."""
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if field["type"] == "boolean" or "properties" in field or field.get("format") == "date-time":
        return ""
    words = in_words(field)
    for lead in ("an integer", "a number", "a text", "a list", "a mapping"):
        words = words.removeprefix(lead)
    return _cell(words.removeprefix(" of ").strip())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
