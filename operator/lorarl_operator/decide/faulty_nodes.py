"""Nodes whose fault ended attempts of a job: `status.faultyNodes`.

A node that ended an attempt is used by the following ones only if no other has room. After a second one within a day
it is not used at all: a broken GPU would end those too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lorarl_operator.decide.parse import time
from lorarl_operator.decide.pod_ends import Outcome
from lorarl_operator.decide.status import timestamp

FAULTS_TO_AVOID = 2
_FORGOTTEN_AFTER = timedelta(days=1)
"""A node that was repaired may be used again."""
_MOST_NODES = 16


@dataclass(frozen=True, slots=True)
class FaultyNode:
    """A node, and how many attempts it ended.

    Attributes:
        reason: Reason of the last one.
    """

    name: str
    attempts: int
    reason: str
    last: datetime


def faulty_nodes(status: dict[str, Any]) -> tuple[FaultyNode, ...]:
    """The nodes in a status, the one with the latest fault last. Entries that cannot be read are left out."""
    found = (_read(entry) for entry in status.get("faultyNodes", ()))
    return tuple(node for node in found if node)


def with_fault(
    known: Sequence[FaultyNode], outcome: Outcome, now: datetime, counted_since: datetime | None = None
) -> list[dict[str, Any]]:
    """`status.faultyNodes` after the fault of a node. Old faults are left out.

    `outcome`: The end of the attempt, or the loss of its workers. `counted_since`: When the attempt lost workers that
    it waits for. A node that is at fault since then was lost with all its pods, which is one fault.
    """
    told = counted_since and any(node.name == outcome.faulty_node and node.last >= counted_since for node in known)
    if told:
        return [_written(node) for node in known]
    kept = [node for node in known if node.name != outcome.faulty_node and _counts(node, now)]
    before = next((node.attempts for node in known if node.name == outcome.faulty_node and _counts(node, now)), 0)
    nodes = [*kept, FaultyNode(outcome.faulty_node, before + 1, outcome.reason, now)]
    return [_written(node) for node in nodes[-_MOST_NODES:]]


def to_avoid(known: Sequence[FaultyNode], now: datetime) -> tuple[str, ...]:
    """Names of the nodes that the next attempt does not use, sorted."""
    return tuple(sorted(node.name for node in known if node.attempts >= FAULTS_TO_AVOID and _counts(node, now)))


def to_use_last(known: Sequence[FaultyNode], now: datetime) -> tuple[str, ...]:
    """Names of the nodes that the next attempt uses only if no other has room, sorted."""
    return tuple(sorted(node.name for node in known if node.attempts < FAULTS_TO_AVOID and _counts(node, now)))


def _counts(node: FaultyNode, now: datetime) -> bool:
    return now - node.last < _FORGOTTEN_AFTER


def _read(entry: Any) -> FaultyNode | None:
    if not isinstance(entry, dict):
        return None
    name, attempts, last = entry.get("name"), entry.get("attempts"), time(entry.get("lastTime"))
    if not isinstance(name, str) or not isinstance(attempts, int) or last is None or last.tzinfo is None:
        return None
    return FaultyNode(name, attempts, str(entry.get("reason", "")), last)


def _written(node: FaultyNode) -> dict[str, Any]:
    return {"name": node.name, "attempts": node.attempts, "reason": node.reason, "lastTime": timestamp(node.last)}
