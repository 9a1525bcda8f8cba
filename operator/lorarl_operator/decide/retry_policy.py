"""What a job's own rules say about the end of an attempt: `spec.retryPolicy`.

Without a rule the row of the reason decides (`reasons.py`). A loss that the attempt survives is no end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lorarl_api.v1alpha1.retries import RETRY_REASONS
from lorarl_operator.decide.pod_ends import Kind, Outcome
from lorarl_operator.decide.reasons import Counts, Ended

DEFAULT_ACTIONS = {Counts.JOB_FAILS: "Fail", Counts.FAILURE: "Retry", Counts.PREEMPTION: "Ignore"}
"""The action of a rule that says what a reason counts as anyway."""


def judged(spec: Mapping[str, Any], outcome: Outcome) -> Outcome:
    """The outcome, as the first rule that names its reason or exit code has it count."""
    if outcome.kind is Kind.SUCCEEDED:
        return outcome
    rules = spec.get("retryPolicy")
    for index, rule in enumerate(rules if isinstance(rules, list) else ()):
        match rule:
            case {"reason": str(reason), "action": str(action)} if outcome.reason == reason:
                return _by(index, action, outcome)
            case {"exitCode": int(code), "action": str(action)} if outcome.exit_code == code:
                return _by(index, action, outcome)
    return outcome


def default_action(reason: Ended) -> str:
    """What follows without a rule, for the table; empty if no rule can change that."""
    return DEFAULT_ACTIONS[Counts(reason.then)] if reason in RETRY_REASONS else ""


def _by(index: int, action: str, outcome: Outcome) -> Outcome:
    kind = Kind.PREEMPTED if action == "Ignore" else Kind.FAILED
    return replace(outcome, kind=kind, rule=f"retryPolicy[{index}] says {action}", is_final=action == "Fail")
