"""When a cron expression holds, in a time zone.

The expressions are those of CronJobs: five fields, or a macro such as @daily. cronsim computes the times. When the
clocks change it does what Debian's cron does: a time that the day leaves out comes right after the change, and one that
the day has twice comes once. An expression whose minute or hour begins with * follows the clock instead.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""What CronJobs take in place of five fields."""
MOST_MISSED = 100
"""More missed times than this are not counted."""


_RANGES = {
    "minute": "minutes from 0 to 59",
    "hour": "hours from 0 to 23",
    "day-of-month": "days from 1 to 31 that one of its months has, or L for the last day",
    "month": "months from 1 to 12 or JAN to DEC",
    "day-of-week": "days of the week from 0 to 7 (0 and 7 are Sunday) or SUN to SAT",
}
"""What a field takes, in words, by the name that cronsim's messages have for it."""
_FIELDS = 5
_WINDOWS = [timedelta(hours=1), *(timedelta(days=days) for days in (1, 8, 62, 800, 36_600))]
"""How far back the newest of very many times is looked for: a million may have come since a schedule last ran."""


class CronError(ValueError):
    """The expression cannot be used.

    Attributes:
        expected: What it must have in place of what is wrong.
    """

    def __init__(self, wrong: str, expected: str = "times that come") -> None:
        """Store what is wrong, and what is expected."""
        super().__init__(wrong)
        self.expected = expected


@dataclass(frozen=True)
class Due:
    """Times that have come.

    Attributes:
        newest: The newest of them.
        before: The one before it, if that has come too.
        count: How many they are, at most MOST_MISSED + 1.
    """

    newest: datetime
    before: datetime | None
    count: int


@dataclass(frozen=True)
class Times:
    """The times of an expression, in UTC. Make it with `times_of`."""

    fields: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment; None if there is none for decades."""
        return next(self._after(moment), None)

    def due(self, since: datetime, now: datetime) -> Due | None:
        """Return the times after `since` that have come; None if none has."""
        found = self._between(since, now, MOST_MISSED + 1)
        if not found:
            return None
        count = len(found)
        if count > MOST_MISSED:
            windows = (self._between(max(since, now - window), now) for window in _WINDOWS)
            found = next(one for one in windows if len(one) > 1)
        return Due(found[-1], found[-2] if count > 1 else None, count)

    def _between(self, since: datetime, now: datetime, most: int | None = None) -> list[datetime]:
        return list(itertools.islice(itertools.takewhile(lambda one: one <= now, self._after(since)), most))

    def _after(self, moment: datetime) -> Iterator[datetime]:
        # Within an hour that the day has twice, cronsim begins with the first of the two.
        times = (one.astimezone(UTC) for one in CronSim(self.fields, moment.astimezone(self.zone)))
        return (one for one in times if one > moment)


def times_of(expression: str, zone: str) -> Times:
    """Return the times of a cron expression in a zone such as Europe/Berlin.

    Raises:
        CronError: The expression is not valid, or never holds. The message says which part is wrong.
        ZoneInfoNotFoundError: There is no such zone.
    """
    parts = MACROS.get(expression.strip(), expression).split()
    if len(parts) != _FIELDS:
        raise CronError(f"{len(parts)} fields", "five fields")
    found = Times(" ".join("*" if part == "?" else part for part in parts), _zone(zone))
    try:
        never = found.after(datetime(2000, 1, 1, tzinfo=UTC)) is None
    except CronSimError as error:
        wrong = str(error).lower()
        of_field = _RANGES[wrong.removeprefix("bad ")]
        raise CronError(wrong, f"{of_field}; ranges that rise, and steps of at least 1") from error
    if never:
        raise CronError("no day fits")
    return found


def _zone(name: str) -> ZoneInfo:
    """Return a zone by its name. A name with .. or a folder's is none either."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ZoneInfoNotFoundError(name) from error
