"""Rows of Python, written as JSON lines: the file that `spec.data` names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lorarl_trainer.errors import InputError

_EXPECTED = "a list of dicts, or a datasets.Dataset"
_TABLES = {"to_dicts": "to_dicts()", "to_pylist": "to_pylist()", "to_dict": "to_dict('records')"}
"""What makes rows of a table: of Polars, of Arrow, and of pandas. Polars has a `to_dict` too, of columns."""


def json_lines(rows: object, argument: str) -> str:
    """Return rows as JSON lines. `argument` is what the caller named them.

    Raises:
        InputError: they are no rows, there are none, or a value has no place in JSON.
    """
    if isinstance(rows, Mapping):  # a DatasetDict, or a dict of columns
        got = f"a mapping with {', '.join(map(str, rows)) or 'nothing'}"
        raise InputError(argument, got, _EXPECTED, f"Choose one of a DatasetDict: {argument}=data['train'].")
    if hasattr(rows, "columns") and (call := next((call for name, call in _TABLES.items() if hasattr(rows, name)), "")):
        raise InputError(argument, f"a {type(rows).__name__}", _EXPECTED, f"Write {argument}=table.{call}.")
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        hint = (
            f"Name a file in the manifest: overrides={{'spec.data.train.uri': 'file:train.jsonl'}}, without {argument}."
        )
        raise InputError(argument, f"a value of type {type(rows).__name__}", _EXPECTED, hint)
    if not (lines := [_line(row, argument, number) for number, row in enumerate(rows, start=1)]):
        raise InputError(argument, "no rows", _EXPECTED, "Add rows such as {'prompt': ..., 'answer': ...}.")
    return "".join(lines)


def _line(row: Any, argument: str, number: int) -> str:
    if not isinstance(row, Mapping):
        hint = "Write a dict for each row, such as {'prompt': ..., 'answer': ...}."
        raise InputError(f"{argument}, row {number}", f"a value of type {type(row).__name__}", "a dict", hint)
    for column, value in row.items():
        if (odd := next(_odd_keys({column: value}), None)) is not None:
            got, hint = (
                f"the key {odd[0]!r} of type {type(odd[0]).__name__}",
                "Write such keys as texts, as with str().",
            )
            raise InputError(f"{argument}, row {number}, column {column}", got, "texts as keys, as JSON has them", hint)
        try:
            json.dumps([column, value], allow_nan=False, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            field, half = f"{argument}, row {number}, column {ascii(column)[1:-1]}", ascii(error.object[error.start])
            hint = "Write text.encode('utf-8', 'replace').decode() in place of text."
            raise InputError(field, f"an unpaired surrogate ({half[1:-1]})", "valid Unicode", hint) from None
        except (TypeError, ValueError) as error:
            field, expected = f"{argument}, row {number}, column {column}", "texts, numbers, lists and dicts"
            hint = "Convert it, for example with str() or float(); for a missing value use None."
            raise InputError(field, f"a value of type {type(value).__name__} ({error})", expected, hint) from None
    return json.dumps(dict(row), ensure_ascii=False) + "\n"


def _odd_keys(value: Any) -> Iterator[tuple[Any]]:
    """Yield the keys of dicts that JSON would make texts of, or has no place for. A reward looks for the others."""
    if isinstance(value, Mapping):
        yield from ((key,) for key in value if not isinstance(key, str))
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _odd_keys(inner)
