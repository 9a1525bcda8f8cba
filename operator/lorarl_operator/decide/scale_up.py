"""A pod for which an autoscaler adds a node: the user need not free or add one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from lorarl_api.redaction import redacted
from lorarl_operator.decide.blockers import Blocker
from lorarl_operator.decide.messages import sentences
from lorarl_operator.decide.models import NODE_COMES, Evidence, Pod
from lorarl_operator.decide.reasons import Waiting

_PATIENCE = timedelta(minutes=15)
"""How long a node may take. By default the autoscaler gives one up after this time, and tries others."""


def scaling_up(
    blocker: Blocker, known: Blocker, pods: Sequence[Pod], evidence: Evidence | None, now: datetime
) -> Blocker:
    """Return what an unschedulable pod waits for, if a node is being added for it; otherwise the blocker itself.

    `known`: What the status says. It holds until the Events are read again. `evidence`: The Events; None if they were
    not read now.
    """
    if blocker.reason != Waiting.UNSCHEDULABLE:
        return blocker
    if evidence is None:
        return known if known.reason == Waiting.SCALING_UP else blocker
    waiting = {pod.name: pod for pod in pods if pod.unschedulable}
    for event in evidence.events:
        if event.reason in NODE_COMES and event.name in waiting and now - event.last_seen <= _PATIENCE:
            problem = f"{NODE_COMES[event.reason]} adds a node for {waiting[event.name].role} pod {event.name}"
            return Blocker(Waiting.SCALING_UP, sentences(f"{problem}: {redacted(event.message)}"))
    return blocker
