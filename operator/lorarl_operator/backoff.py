"""How long a job waits before its next attempt."""

from __future__ import annotations

from datetime import datetime

from lorarl_operator.settings import Settings
from lorarl_operator.status import RESTARTING, Draft

BACKING_OFF = "BackingOff"
"""Reason of the condition Running after a failure of the job's own."""
PREEMPTED = "Restarting"
"""... after a preemption."""
PREEMPTED_AGAIN = "PreemptedAgain"
"""... after a preemption of an attempt that had hardly begun, and was not the first to be preempted."""
_LONG_ENOUGH_SECONDS = 60.0
_DOUBLINGS = 16


def reason_of_preemption(draft: Draft, now: datetime) -> str:
    """Which kind of preemption this is; the draft has counted it already, and says in its condition Running since when the attempt was."""
    since = draft.since("Running")
    lived = (now - since).total_seconds() if since else _LONG_ENOUGH_SECONDS
    return PREEMPTED_AGAIN if draft.counter("preemptions") > 1 and 0 <= lived < _LONG_ENOUGH_SECONDS else PREEMPTED


def wait(reason: str, draft: Draft, settings: Settings) -> float:
    """Seconds between the end of an attempt and the next one, for a reason of the condition Running.

    After a preemption that is next to nothing, unless one follows the other: then it doubles, so that whatever takes the machines away at
    once each time is not asked again every second.
    """
    if reason == BACKING_OFF:
        return _doubled(settings.backoff_seconds, draft.counter("attempts"), settings.backoff_limit_seconds)
    if reason == PREEMPTED_AGAIN:
        return _doubled(
            settings.retry_after_preemption_seconds, draft.counter("preemptions"), settings.preemption_limit_seconds
        )
    return settings.retry_after_preemption_seconds


def pause(draft: Draft, now: datetime, settings: Settings) -> float:
    """Seconds until the next attempt may be made. An end in the far future is a wrong clock, and no pause."""
    if draft.phase != RESTARTING:
        return 0.0
    ended = draft.since("Running")
    delay = wait(draft.reason("Running"), draft, settings)
    if ended is None or (passed := (now - ended).total_seconds()) < -delay:
        return 0.0
    return delay - passed


def _doubled(first: float, count: int, limit: float) -> float:
    return float(min(first * 2 ** min(max(count - 1, 0), _DOUBLINGS), limit))
