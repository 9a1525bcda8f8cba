"""The API server's time, from the header Date of its answers.

Deadlines and pauses count from times that another replica wrote, or the API server itself. A replica whose own clock is
an hour ahead would end jobs by them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_SAME = timedelta(seconds=2)
"""Dates are whole seconds, and an answer travels. So a difference below this is none."""


class ServerTime:
    """How far our clock is from the API server's, by the newest answer."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`clock`: This machine's."""
        self._clock = clock
        self._ahead = timedelta(0)

    def note(self, date: str | None) -> None:
        """Compare with the header of an answer that just came. A proxy may leave it out."""
        try:
            ahead = parsedate_to_datetime(date or "") - self._clock()
        except (ValueError, TypeError):
            return
        self._ahead = ahead if abs(ahead) > _SAME else timedelta(0)

    def now(self) -> datetime:
        """The present time."""
        return self._clock() + self._ahead
