"""A manifest with wrong fields as their hints would have it, to see which rules its fields break besides."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from lorarl_api.faults import Fault, Path, example_of, from_rule, nearest
from lorarl_api.mending import mended
from lorarl_api.rules import broken_rules
from lorarl_api.schema import Schema, schema_at
from lorarl_api.v1alpha1 import RULES_LATER, LoRARLJob
from lorarl_api.v1alpha1.common import Model


def rules_of_wrong_fields(
    document: Any,
    error: ValidationError,
    kind: type[Model] = LoRARLJob,
    whole: Schema | None = None,
    *,
    in_cluster: bool = False,
) -> Iterator[Fault]:
    """The faults by rules of the fields that Pydantic refuses, which would otherwise come in a second round.

    Rules of other fields may follow from what is wrong here, so they wait. `kind` and its schema `whole`: of the
    manifest. `in_cluster`: see `broken_rules`.
    """
    corrected = copy.deepcopy(document)
    meant: list[Path] = []
    guessed: list[Path] = []
    for details in error.errors(include_url=False):
        try:
            known = _correct(corrected, details["loc"], details["type"], whole)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            return
        (meant if known else guessed).append(details["loc"])
    try:
        made = kind.model_validate(corrected, by_alias=True, by_name=False, context=RULES_LATER)
    except ValidationError:
        return

    def concerns(field: Path) -> bool:
        if any(field[: len(one)] == one[: len(field)] for one in meant):
            return True
        # A guess has no rules itself. What is around it has those that do not look at it.
        return any(field == one[: len(field)] and len(field) < len(one) for one in guessed)

    for path, rule in broken_rules(made, in_cluster=in_cluster, wanted=concerns):
        yield from_rule(document, path, rule)


def _correct(document: Any, path: Path, kind: str, whole: Schema | None) -> bool:
    """Do in place what a fault's hint says. Return whether that is what was meant, and not just an example."""
    schema = schema_at(path, whole)
    *above, key = path
    inner = document
    for step in above:
        inner = inner[step]
    if kind == "extra_forbidden" or schema is None:
        value = inner.pop(key)
        if near := nearest(str(key), list((schema_at(above, whole) or {}).get("properties", {}))):
            inner.setdefault(near, value)
        return True
    if kind != "missing" and (meant := mended(inner[key], schema)) is not None:
        inner[key] = meant
        return True
    is_text = kind == "missing" or isinstance(inner[key], str)  # of a text, the hint may make something else
    inner[key] = example_of(schema)
    return "properties" in schema and not is_text
