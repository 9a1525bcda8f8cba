"""More entries of `spec.publish`, with those that are being withdrawn, than a status has room for."""

from __future__ import annotations

from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobStatus
from lorarl_operator.decide.served import Remove
from unit.operator.publishing_world import ENTRY, World


def test_no_entry_is_forgotten_while_the_servers_are_slow_to_remove_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight entries are the most, and a status has room for sixteen."""
    many = [[ENTRY | {"name": f"{letter}{number}"} for number in range(8)] for letter in "abc"]
    world = World(*many[0])
    world.reports(10, 0.9)
    world.settle()
    write = world._write

    def slowly(what: Any) -> None:
        if isinstance(what, Remove):
            world.objects[what.name]["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
        else:
            write(what)

    monkeypatch.setattr(world, "_write", slowly)
    for entries in many[1:]:
        world.entries = entries
        world.settle()
        LoRARLJobStatus.model_validate(world.status)
    names = {one["name"] for one in world.status["published"]}
    assert names == {one["name"] for entries in many[:2] for one in entries}
    assert len(world.objects) == 16, "those of the first two lists"
    for model_name in [one for one in world.objects if "deletionTimestamp" in world.objects[one]["metadata"]]:
        del world.objects[model_name]
    world.settle()
    assert {one["name"] for one in world.status["published"]} == {one["name"] for one in many[2]}
