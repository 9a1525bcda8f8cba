"""A row's columns: what is not there is absent in every format, and a name may lead into nested columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.called import CALLS, as_templates_take
from lorarl_trainer.errors import InputError


def given(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a row as any format would give it.

    Tables fill up: each message has the keys of all others, as null. Such keys are removed from messages and from what
    is in them, as are empty lists of calls. Calls are as chat templates take them. Other cells stay, so that a reward
    finds each column in `row`. Decimals are numbers as JSON has them, where these are exact.
    """
    return {name: _given(value) for name, value in raw.items()}


def bare(value: Any) -> Any:
    """Return a cell without what is missing, to compare rows of all formats: tables write whole numbers as 1.0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: bare(inner) for key, inner in value.items() if not _is_missing(key, inner)}
    return [bare(inner) for inner in value] if isinstance(value, list) else value


def cell(raw: dict[str, Any], name: str) -> Any:
    """Return the value of a column, None if there is none. `reward_model.ground_truth` is within a column's object."""
    value: Any = raw
    if name not in raw:
        *path, name = name.split(".")
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
    return value.get(name) if isinstance(value, dict) else None


def names_of(raw: dict[str, Any]) -> list[str]:
    """Return the names of a row's columns, of objects those within, sorted."""
    return sorted(_names(raw, ""))


def missing(raw: dict[str, Any], name: str, field: str, where: str, source: DataSource) -> InputError:
    """Return the error of a row without a column, or with nothing in it."""
    names = names_of(raw)
    if name in raw or name in names:
        return InputError(
            field, f"{name}, which is empty in {where}", "a value in every row", "Fill it in, or remove that row."
        )
    existing = ", ".join(map(_shown, names)) or "none"
    free = [one for one in names if one not in source.columns]
    near = get_close_matches(name, free, n=1, cutoff=0.5)
    hint = f"Set {field} to one of them, or add the column." if free else f"Add the column {name} to every row."
    whole = next((one for one in free if _ends_answered(cell(raw, one))), None)
    if whole and field.endswith((".promptField", ".answerField")):
        data = field.rpartition(".")[0]
        hint = f"For sft, set {data}.messagesField to {whole}: it has whole conversations. Otherwise add the column."
    elif _lacks_header(raw, source):
        hint += " A CSV file needs a line with the names of its columns."
    elif near:
        hint = f"Did you mean {_shown(near[0])}?"
    return InputError(field, f"{name}, which {where} does not have", f"one of the existing fields ({existing})", hint)


def _lacks_header(raw: dict[str, Any], source: DataSource) -> bool:
    """Whether the names of a CSV file's columns seem to be its first row: none is one that the manifest names."""
    columns = (source.prompt_field, source.answer_field, *source.pair_fields)
    return source.origin.lower().endswith(".csv") and {key.strip() for key in raw}.isdisjoint(columns)


def _ends_answered(value: Any) -> bool:
    """Whether it is a chat whose last message is the assistant's, as ShareGPT has it too."""
    last = value[-1] if isinstance(value, list) and value else None
    return isinstance(last, dict) and (last.get("role") == "assistant" or last.get("from") in ("gpt", "assistant"))


def _shown(name: str) -> str:
    return name if name == name.strip() else repr(name)


def _names(raw: dict[str, Any], before: str) -> Iterator[str]:
    for name, value in raw.items():
        if isinstance(value, dict) and value:
            yield from _names(value, f"{before}{name}.")
        else:
            yield before + name


def _is_chat(value: Any) -> bool:
    """Whether it is a list of messages, with a role or as ShareGPT has them, or of tools."""
    keys = ("role", "from", "function")
    return isinstance(value, list) and any(isinstance(one, dict) and any(key in one for key in keys) for one in value)


def _is_missing(key: str, value: Any) -> bool:
    return value is None or (key == CALLS and value == []) or (isinstance(value, float) and math.isnan(value))


def _given(value: Any) -> Any:
    if isinstance(value, dict):  # a manifest may name a column within it
        return {key: _given(inner) for key, inner in value.items()}
    return _bare(value) if _is_chat(value) else _plain(value)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return as_templates_take({key: _bare(inner) for key, inner in value.items() if not _is_missing(key, inner)})
    return [_bare(inner) for inner in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        if value == value.to_integral_value():
            return int(value)
        return float(value) if Decimal(repr(float(value))) == value else value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
