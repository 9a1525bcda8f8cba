"""Pods that an attempt loses before it runs.

KubeRay replaces such a pod at once, and would do so forever. One or two may be bad luck. After `MOST_LOSSES` of them
the attempt ends, and the next one follows after the usual delay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lorarl_operator.decide.models import Pod
from lorarl_operator.decide.pod_ends import (
    Kind,
    Outcome,
    exited_container,
    exited_spare,
    exited_worker,
    failed_init,
    failed_init_container,
    taken,
)

MOST_LOSSES = 3
"""Losses of one kind that end an attempt."""
_NEWS = timedelta(seconds=60)
"""How long a loss explains why the attempt does not run yet."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod that is lost, and when that happened."""

    outcome: Outcome
    at: datetime


def losses(pods: Iterable[Pod]) -> tuple[Loss, ...]:
    """The lost pods among an attempt's existing and deleted ones, the oldest first."""
    ends = ((taken(pod) or failed_init(pod) or exited_worker(pod) or exited_spare(pod), pod) for pod in pods)
    found = (Loss(outcome, _when(pod)) for outcome, pod in ends if outcome)
    return tuple(sorted(found, key=lambda loss: loss.at))


def too_many(lost: Sequence[Loss]) -> Outcome | None:
    """The end of an attempt that keeps losing pods; None while KubeRay may still replace them."""
    for kind in (Kind.FAILED, Kind.PREEMPTED):
        same = [loss.outcome for loss in lost if loss.outcome.kind is kind]
        if len(same) >= MOST_LOSSES:
            return same[-1]
    return None


def newest(lost: Sequence[Loss], now: datetime) -> Outcome | None:
    """The newest loss, if it is recent enough to explain the present state."""
    return lost[-1].outcome if lost and now - lost[-1].at <= _NEWS else None


def _when(pod: Pod) -> datetime:
    container = failed_init_container(pod) or exited_container(pod)
    return (container.ended_at if container else pod.deletion_asked_at) or pod.created_at
