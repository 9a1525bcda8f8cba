"""All replicas count by one clock, the API server's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lorarl_operator.kube.server_time import ServerTime
from unit.operator.test_client import MANIFEST, against

HERE = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("date", "now"),
    [
        ("Sun, 01 Mar 2026 11:00:00 GMT", HERE - timedelta(hours=1)),
        ("Sun, 01 Mar 2026 12:00:30 GMT", HERE + timedelta(seconds=30)),
        ("Sun, 01 Mar 2026 11:59:59 GMT", HERE),
        ("soon", HERE),
        (None, HERE),
    ],
)
def test_a_clock_that_is_wrong_follows_the_api_servers(date: str | None, now: datetime) -> None:
    time = ServerTime(lambda: HERE)
    time.note(date)
    assert time.now() == now


def test_a_clock_that_was_put_right_counts_again() -> None:
    time = ServerTime(lambda: HERE)
    for date in ("Sun, 01 Mar 2026 11:00:00 GMT", "Sun, 01 Mar 2026 12:00:00 GMT"):
        time.note(date)
    assert time.now() == HERE


def test_each_answer_tells_the_client_and_its_copies_the_time() -> None:
    async def asked(client):
        behind = client.fenced(lambda: 60.0)
        await client.create(MANIFEST)
        return behind.now()

    seen, _ = against([(200, MANIFEST, {"Date": "Mon, 02 Mar 2026 11:00:00 GMT"})], asked)
    assert abs(seen - datetime(2026, 3, 2, 11, tzinfo=UTC)) < timedelta(minutes=1)
