"""How long a job waits before its next attempt."""

from __future__ import annotations

from datetime import datetime

from lorarl_operator.decide.reasons import Reason, Waiting
from lorarl_operator.decide.settings import Settings
from lorarl_operator.decide.status import RESTARTING, Draft

_LONG_ENOUGH_SECONDS = 60.0
_MAX_DOUBLINGS = 16


def preemption_reason(draft: Draft, now: datetime) -> Waiting:
    """`RESTARTING` or `PREEMPTED_AGAIN`.

    The draft has counted the preemption already. An attempt that never ran began when the one before it ended. One
    that got further than any before needs no pause, however short it was: it would cost the job its place in a queue.
    """
    began = draft.since("Running") if draft.is_true("Running") else (ended_at(draft) or draft.since("Running"))
    lived = (now - began).total_seconds() if began else _LONG_ENOUGH_SECONDS
    again = draft.counter("preemptionsWithoutProgress") > 1
    return Waiting.PREEMPTED_AGAIN if again and 0 <= lived < _LONG_ENOUGH_SECONDS else Waiting.RESTARTING


def delay(reason: Reason, draft: Draft, settings: Settings) -> float:
    """Seconds between the end of an attempt and the next one, for a reason of the condition Running.

    After a preemption the delay is about a second. It doubles when preemptions follow each other closely and without
    progress, so that a cluster which takes the machines away at once each time is not asked every second.
    """
    if reason == Waiting.BACKING_OFF:
        return _doubled(settings.backoff_seconds, draft.counter("attempts"), settings.backoff_limit_seconds)
    if reason == Waiting.PARTLY_PLACED:
        return settings.preemption_limit_seconds
    if reason == Waiting.PREEMPTED_AGAIN:
        in_a_row = draft.counter("preemptionsWithoutProgress")
        return _doubled(settings.retry_after_preemption_seconds, in_a_row, settings.preemption_limit_seconds)
    return settings.retry_after_preemption_seconds


def remaining(draft: Draft, now: datetime, settings: Settings) -> float:
    """Seconds until the next attempt may be created. An end far in the future is a wrong clock: no delay."""
    if draft.phase != RESTARTING:
        return 0.0
    ended = ended_at(draft)
    seconds = delay(draft.reason("Running"), draft, settings)
    if ended is None or (passed := (now - ended).total_seconds()) < -seconds:
        return 0.0
    return seconds - passed


def ended_at(draft: Draft) -> datetime | None:
    """When the newest attempt that ended did so."""
    return draft.at("attemptEndTime")


def _doubled(first: float, count: int, limit: float) -> float:
    return float(min(first * 2 ** min(max(count - 1, 0), _MAX_DOUBLINGS), limit))
