"""A log collector finds all lines of a job by its fields."""

from __future__ import annotations

import asyncio
import json
import logging

from lorarl_operator import logs


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logs.JsonFormatter())
        self.lines: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(json.loads(self.format(record)))


async def work_on(log: logging.Logger, job: str, attempt: int) -> None:
    with logs.about(namespace="team", job=job):
        await asyncio.sleep(0)
        log.warning("found")
        logs.also(uid=f"uid-{job}", attempt=attempt)
        await asyncio.sleep(0)
        log.warning("decided")
    log.warning("done")


def test_each_line_has_the_fields_of_its_own_job_however_many_work_at_once() -> None:
    log, lines = logging.getLogger("test_logs"), Lines()
    log.addHandler(lines)
    log.propagate = False

    async def story() -> None:
        await asyncio.gather(*(asyncio.create_task(work_on(log, job, number)) for number, job in enumerate("ab", 1)))

    asyncio.run(story())
    about = ("namespace", "job", "uid", "attempt")
    for number, job in enumerate("ab", 1):
        of_job = [line for line in lines.lines if line.get("job") == job]
        assert [[line.get(name) for name in about] for line in of_job] == [
            ["team", job, None, None],
            ["team", job, f"uid-{job}", number],
        ]
    assert [line["message"] for line in lines.lines if "job" not in line] == ["done", "done"]
