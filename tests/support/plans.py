"""Plans with other decisions than planning's."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lorarl_trainer.planning.execution import ExecutionPlan


def changed(plan: ExecutionPlan, **decisions: Any) -> ExecutionPlan:
    """The plan with these decisions, each in the value that has a field of this name."""
    for name in ("layout", "trainer", "engine"):
        part: Any = getattr(plan, name)
        own = {field.name: decisions.pop(field.name) for field in fields(part) if field.name in decisions}
        plan = replace(plan, **{name: replace(part, **own)})
    return replace(plan, **decisions)
