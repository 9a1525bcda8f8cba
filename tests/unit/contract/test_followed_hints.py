"""A hint works: what it says to write is taken by its field. Tried on wrong values for every field of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from lorarl_api.faults import Fault
from lorarl_api.load import faults
from lorarl_api.schema import Schema, job_schema
from unit.contract.manifests import manifest

WRONG: tuple[Any, ...] = (
    0, 64, True, "64", "true", "q_proj,k_proj", [0], {"name": "x"},
    [{"name": "A", "value": "b"}], [{"name": "regcred"}],
)  # fmt: skip


def fields(schema: Schema, path: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        below = f"{path}.{name}".removeprefix(".")
        yield below
        yield from fields(inner, below)


FIELDS = [path for path in fields(job_schema()) if path.startswith("spec.")]


def followed(fault: Fault, got: Any) -> Any:
    """What a person writes who does what the hint says; None if it names no value."""
    if fault.hint == "Remove the quotes.":
        return yaml.safe_load(got)
    if fault.hint.startswith("Put it in quotes"):
        return str(got).lower() if isinstance(got, bool) else str(got)
    found = re.match(
        r"(?:Use a (?:value|rank) such as|Write a list:|Write the name alone:|Add a unit:) (.*?)(?:: lorarl .*)?\.$",
        fault.hint,
    )
    if found:
        return yaml.safe_load(found[1])
    if named := re.match(r"Write names with their values: \w+: (.*)\.$", fault.hint):
        return yaml.safe_load(named[1])
    if meant := re.match(r"Did you mean (.*)\?$", fault.hint):
        return meant[1]
    return None


def of_field(document: dict[str, Any], path: str) -> list[Fault]:
    """The faults of a field and of what is in it, but for those that rules between fields find."""
    found = faults(document)
    return [one for one in found if re.match(rf"{re.escape(path)}($|[.\[])", one.path) and one.verb == "expected"]


@pytest.mark.parametrize("part", sorted({path.split(".")[1] for path in FIELDS}))
def test_the_value_of_a_hint_is_taken(part: str) -> None:
    tried = 0
    for path in (path for path in FIELDS if path.split(".")[1] == part):
        for wrong in WRONG:
            for fault in of_field(manifest({path: wrong}), path):
                if fault.path != path or (value := followed(fault, wrong)) is None:
                    continue
                tried += 1
                left = [one for one in of_field(manifest({path: value}), path) if one.path == path]
                assert left == [], f"{path}: {wrong!r} -> {fault.hint} -> {left[0]}"
    assert tried
