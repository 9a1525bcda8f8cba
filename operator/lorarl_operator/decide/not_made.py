"""Why a sweep or a schedule could not make a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lorarl_operator.decide.reason_row import Row


@dataclass(frozen=True, slots=True)
class NotMade:
    """Why there is no job.

    Attributes:
        for_good: Whether the same job is refused whenever it is tried.
        until: When it is tried again.
        passes: Whether what is in the way goes by itself, so that there is nothing to do.
    """

    reason: Row
    message: str
    for_good: bool
    until: datetime
    passes: bool = False
