"""Defaults in a stored object: what the API server wrote there, and what the user did.

The API server writes each default of its CRD into every object that it returns. So an object may have fields that an
older operator or trainer does not know, although no user ever wrote them.
"""

from __future__ import annotations

from typing import Any

from lorarl_api.schema import Schema
from lorarl_api.template_schema import spec_schema
from lorarl_api.v1alpha1 import KIND


def explicit(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without the fields that have their default.

    Any version that has this default, and any older one that lacks the field, reads the same from it.
    """
    found: dict[str, Any] = _explicit(spec, spec_schema(KIND))
    return found


def _explicit(value: Any, schema: Schema) -> Any:
    if isinstance(value, list) and "items" in schema:
        return [_explicit(entry, schema["items"]) for entry in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    fields = schema["properties"]
    return {
        key: _explicit(inner, fields.get(key, {}))
        for key, inner in value.items()
        if not _has_default(inner, fields.get(key, {}))
    }


def knows(spec: dict[str, Any], kind: str = KIND) -> bool:
    """Whether this version of the contract knows all keys of a spec of this kind."""
    return _knows(spec, spec_schema(kind))


def _knows(value: Any, schema: Schema) -> bool:
    if isinstance(value, list) and "items" in schema:
        return all(_knows(entry, schema["items"]) for entry in value)
    if not isinstance(value, dict) or "properties" not in schema:
        return True
    fields = schema["properties"]
    return all(key in fields and _knows(inner, fields[key]) for key, inner in value.items())


def readable(spec: dict[str, Any], served: Schema, kind: str = KIND) -> dict[str, Any]:
    """A spec of this kind without the unknown fields that have their default in the served schema.

    A field with any other value stays, so that it is refused: to ignore it would be another training.

    `served`: The schema of the spec in the CRD that the API server serves.
    """
    found: dict[str, Any] = _readable(spec, spec_schema(kind), served)
    return found


def _readable(value: Any, known: Schema, served: Schema) -> Any:
    if isinstance(value, list) and "items" in known:
        return [_readable(entry, known["items"], served.get("items", {})) for entry in value]
    if not isinstance(value, dict) or "properties" not in known:
        return value
    fields, of_served = known["properties"], served.get("properties", {})
    return {
        key: _readable(inner, fields.get(key, {}), of_served.get(key, {}))
        for key, inner in value.items()
        if key in fields or not _has_default(inner, of_served.get(key, {}))
    }


def _has_default(value: Any, schema: Schema) -> bool:
    return "default" in schema and _completed(value, schema) == _completed(schema["default"], schema)


def _completed(value: Any, schema: Schema) -> Any:
    """A value with the defaults of its absent fields, as the API server completes it."""
    if isinstance(value, list) and "items" in schema:
        return [_completed(entry, schema["items"]) for entry in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    fields = schema["properties"]
    absent = {name: field["default"] for name, field in fields.items() if "default" in field and name not in value}
    return {key: _completed(inner, fields.get(key, {})) for key, inner in {**value, **absent}.items()}
