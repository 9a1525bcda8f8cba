"""Failures that another attempt would end with too. They end the job, so that no GPU is taken for them again."""

from __future__ import annotations

from lorarl_operator.decide.pod_ends import Outcome
from lorarl_operator.decide.reasons import Counts, Ended
from lorarl_operator.decide.snapshot import Snapshot
from lorarl_operator.decide.status import Draft, whole_drift

_PERMANENT: frozenset[str] = frozenset(reason for reason in Ended if reason.then == Counts.JOB_FAILS)
"""A next attempt of a fenced job would fence off the start that took over."""
FIELD = "policyDrift"
"""Field of the status that remembers it."""


def why_permanent(snapshot: Snapshot, draft: Draft, outcome: Outcome) -> str | None:
    """Return why no further attempt follows; None if one may. It records a PolicyDrift in the draft."""
    if outcome.rule:
        return outcome.rule if outcome.is_final else None
    if outcome.reason in _PERMANENT:
        return "so would another one"
    # It may be a node's fault. It recurs at the same step, because a step's number seeds everything in it.
    if outcome.reason != Ended.POLICY_DRIFT:
        return None
    step = int(snapshot.status.get("step", 0))
    pods = (*snapshot.attempt_pods, *snapshot.departed_pods)
    nodes = sorted({pod.node for pod in pods if pod.role == "worker" and pod.node})
    before = whole_drift(snapshot.status.get(FIELD))
    if before is not None and before["step"] == step:
        suspects = sorted(set(nodes) & set(before["nodes"]))
        if not suspects:
            where = f" on other nodes ({_named(before['nodes'])}, now {_named(nodes)})" if nodes else ""
            return f"an earlier one failed so too, after the same step{where}"
        nodes = suspects
    draft.put(FIELD, {"step": step, "nodes": nodes})
    return None


def _named(nodes: list[str]) -> str:
    return ", ".join(nodes) or "unknown"
