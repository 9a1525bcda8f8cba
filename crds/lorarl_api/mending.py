"""What a value was probably meant to be: a value that its field takes."""

from __future__ import annotations

import re
from typing import Any

from lorarl_api.schema import Schema


def mended(got: Any, schema: Schema) -> Any:
    """Return what was probably meant by a value that a field does not take; None if nothing near would be taken."""
    try:
        return next((value for value in _candidates(got, schema) if fits(value, schema)), None)
    except (TypeError, ValueError):  # a list as a name, or an integer of thousands of digits
        return None


def _candidates(got: Any, schema: Schema) -> list[Any]:
    wanted = schema.get("type")
    if wanted == "array" and isinstance(got, str):
        parts = [part.strip("'\"") for part in re.split(r"[\s,;]+", got.strip("[] ")) if part]
        return [parts, [got]] if got.startswith("[") else [[got], parts]  # a text may have spaces
    if wanted == "array":
        return [[got]]
    if wanted == "object" and isinstance(got, list):
        # The form of Kubernetes' environment variables. One that is taken from elsewhere has no value.
        pairs = [(one.get("name"), one.get("value")) for one in got if isinstance(one, dict)]
        return (
            [{name: None if value is None else str(value) for name, value in pairs}] if len(pairs) == len(got) else []
        )
    if wanted == "string" and isinstance(got, dict):
        return [got.get("name")] if list(got) == ["name"] else []  # Kubernetes' form of a reference
    if wanted == "string" and isinstance(got, bool):
        return [str(got).lower()]
    if wanted == "string" and isinstance(got, int | float):
        return [str(got), _with_unit(str(got))]
    if wanted == "string" and isinstance(got, str) and re.fullmatch(r"[0-9.]+", got):
        return [_with_unit(got)]
    if wanted == "string" and isinstance(got, str) and (size := re.fullmatch(r"([0-9.]+)\s*([KMGT]i?)[bB]?", got)):
        return [f"{size[1]}{size[2]}"]
    if wanted in ("integer", "number", "boolean") and isinstance(got, str):
        return _unquoted(got)
    return []


def _with_unit(number: str) -> str:
    """Return a size of memory without a unit as what it was probably meant in: GiB, MiB, or bytes."""
    if not number.isdecimal() or (size := int(number)) < 1024:
        return f"{number}Gi"
    if size < 2**20:
        return f"{number}Mi"
    return f"{size // 2**20}Mi" if size % 2**30 else f"{size // 2**30}Gi"


def _unquoted(text: str) -> list[Any]:
    if text in ("true", "false"):
        return [text == "true"]
    try:
        return [int(text)] if re.fullmatch(r"[-+]?[0-9]+", text) else [float(text)]
    except ValueError:
        return []


def fits(value: Any, schema: Schema) -> bool:
    """Return whether a field takes a value, by its schema alone: rules between fields come later."""
    wanted = schema.get("type")
    if value is None or ("enum" in schema and value not in schema["enum"]):
        return False
    if wanted == "array":
        low, high = schema.get("minItems", 0), schema.get("maxItems", len(value))
        return low <= len(value) <= high and all(fits(one, schema["items"]) for one in value)
    if wanted == "object":
        inner = schema.get("additionalProperties")
        return isinstance(inner, dict) and all(fits(one, inner) for one in value.values())
    if wanted == "string":
        return _fits_string(value, schema)
    if wanted == "boolean":
        return isinstance(value, bool)
    return _fits_number(value, schema)


def _fits_string(value: Any, schema: Schema) -> bool:
    if not isinstance(value, str) or not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 2**31):
        return False
    return re.search(schema.get("pattern", ""), value) is not None


def _fits_number(value: Any, schema: Schema) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if schema.get("type") == "integer" else int | float):
        return False
    above = value > schema["exclusiveMinimum"] if "exclusiveMinimum" in schema else True
    below = value < schema["exclusiveMaximum"] if "exclusiveMaximum" in schema else True
    return above and below and schema.get("minimum", value) <= value <= schema.get("maximum", value)
