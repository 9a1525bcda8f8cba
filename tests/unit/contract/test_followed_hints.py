"""A hint works: what it says to write is taken by its field. Tried on wrong values for every field of the contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml

from lorarl_api.faults import Fault
from lorarl_api.load import faults
from lorarl_api.schedules.manifest import schedule_faults
from lorarl_api.schema import Schema, job_schema
from lorarl_api.template_schema import schedule_schema
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


def absent(document: dict[str, Any], schema: Schema, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all fields of a document that its schema requires."""
    for name, inner in schema.get("properties", {}).items():
        if name not in document:
            continue
        if name in schema.get("required", []):
            yield (*above, name)
        if isinstance(document[name], dict):
            yield from absent(document[name], inner, (*above, name))


SCHEDULE = {
    "apiVersion": "lorarl.io/v1alpha1",
    "kind": "LoRARLSchedule",
    "metadata": {"name": "nightly"},
    "spec": {"schedule": "0 3 * * *", "template": {"spec": manifest()["spec"]}},
}
WHOLE = [
    pytest.param(whole, checked, path, id=f"{whole['kind']}-{'.'.join(path)}")
    for whole, checked, schema in (
        (manifest(), faults, job_schema()),
        (SCHEDULE, schedule_faults, schedule_schema()),
    )
    for path in absent(whole, schema)
    if path[-1] not in ("spec", "template")  # which stand for most of a manifest
]


@pytest.mark.parametrize(("whole", "checked", "path"), WHOLE)
def test_what_is_absent_is_added_in_one_round(
    whole: dict[str, Any], checked: Callable[[Any], list[Fault]], path: tuple[str, ...]
) -> None:
    document = deepcopy(whole)
    *above, last = path
    inner = document
    for key in above:
        inner = inner[key]
    del inner[last]
    (fault,) = checked(document)
    named = re.match(r"Add (?:it, for example )?(.*)\.$", fault.hint)
    assert named, fault.hint
    inner.update(yaml.safe_load(named[1]))
    assert checked(document) == []
