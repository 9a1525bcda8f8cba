"""The pages of a cluster's jobs. Each answer has only what its reader may see: other namespaces are not even named."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from lorarl_trainer.dashboard.answers import etag, message
from lorarl_trainer.dashboard.cluster.access import Access, Reader
from lorarl_trainer.dashboard.cluster.api import Api, ApiError, jobs_path
from lorarl_trainer.dashboard.cluster.jobs import JobRow, conditions, job_row
from lorarl_trainer.dashboard.cluster.records import Records
from lorarl_trainer.dashboard.cluster.usage import MOST as MOST_SUMS
from lorarl_trainer.dashboard.cluster.usage import by_namespace, by_queue
from lorarl_trainer.dashboard.cluster.view import COLUMNS, JobView, Line, Made, chosen, grouped
from lorarl_trainer.dashboard.cluster.watch import WatchedJobs
from lorarl_trainer.dashboard.files import Copies
from lorarl_trainer.dashboard.reports import COMMAND, MOST, Found, Reports
from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.tables import age
from lorarl_trainer.progress.web import ASKS, Answer, Query, given_secret

HEALTH = "/healthz"
"""Answered without a token, for probes. It says only that the process answers."""
NO_TOKEN = (
    "A token of the cluster is needed. Make one with `kubectl create token ACCOUNT -n NAMESPACE`, and give it as the "
    "password, with any user name. Programs send it as a bearer token."
)
BAD_TOKEN = (
    "The API server does not take this token: it has expired, was withdrawn, or is not of this cluster. Make a new one "
    "with `kubectl create token ACCOUNT -n NAMESPACE`, and give it as the password, with any user name."
)
NO_REVIEW = "The API server cannot be asked who you are and what you may see, so nothing is shown. Try again soon. "
NOT_ALLOWED = (
    "The API server refuses to say who you are and what you may see. The dashboard's account may need its rights back: "
    "to create tokenreviews and subjectaccessreviews. "
)
_JOB = re.compile(r"/job/([a-z0-9-]+)/([a-z0-9.-]+)/(?:(report)/(data\.json)?)?")


@dataclass(frozen=True)
class _Seen:
    """What a reader may see.

    Attributes:
        rows: the jobs of the namespaces that they may list.
        problems, doing: what to say of the API server.
    """

    reader: Reader
    rows: list[JobRow]
    problems: list[str]
    doing: list[str]

    def row(self, job_id: str) -> JobRow | None:
        """Return a job; None if there is none that the reader may see."""
        return next((row for row in self.rows if row.id == job_id), None)


class ClusterSite:
    """Answers requests. Safe to use from several threads."""

    def __init__(
        self, api: Api, watched: Sequence[WatchedJobs], access: Access, records: Records, copies: Copies
    ) -> None:
        """`watched`: the whole cluster, or each namespace alone. `copies`: of the files of runs in stores."""
        self._api, self._watched, self._access, self._records = api, watched, access, records
        self._reports = Reports(copies)

    def respond(self, path: str, query: Query, headers: Mapping[str, str]) -> Answer | None:
        """Return the page of a path for who asks; None if there is no such page for them."""
        if path == HEALTH:
            return Answer(b"ok", "text/plain")
        if not (token := given_secret(headers)):
            return _refused(NO_TOKEN)
        try:
            reader = self._access.reader(token)
            if reader is None:
                return _refused(BAD_TOKEN)
            seen = self._seen(reader)
        except ApiError as error:
            said = NO_REVIEW if error.away else NOT_ALLOWED
            return message("Not shown", f"{said}({error})", HTTPStatus.SERVICE_UNAVAILABLE, "")
        return self._page(path, query, seen)

    def _page(self, path: str, query: Query, seen: _Seen) -> Answer | None:
        def find(job_id: str) -> Found | None:
            return None if (row := seen.row(job_id)) is None else self._records.find(row)

        if path == "/":
            return self._list(JobView.of_query(query), seen)
        if path in ("/compare", "/compare.json"):
            return self._reports.comparison(query.get("run", []), find, as_data=path.endswith(".json"))
        if (asked := _JOB.fullmatch(path)) is None:
            return None
        job_id = f"{asked[1]}/{asked[2]}"
        if asked[3]:
            return self._reports.of_run(job_id, find, "../../../../", as_data=asked[4] is not None)
        if (row := seen.row(job_id)) is None:
            said = "There is no such job, or you may not see it."
            return message("No such job", said, HTTPStatus.NOT_FOUND, "../../../")
        return self._job(row)

    def _seen(self, reader: Reader) -> _Seen:
        every = [row for watched in self._watched for row in watched.rows()]
        named = {watched.namespace for watched in self._watched if watched.namespace}
        visible = self._access.visible(reader, named | {row.namespace for row in every})
        shown = [watched for watched in self._watched if watched.namespace is None or watched.namespace in visible]
        return _Seen(
            reader,
            [row for row in every if row.namespace in visible],
            [watched.problem for watched in shown if watched.problem],
            [f"listing: {watched.seen:,} jobs so far" for watched in shown if not watched.listed],
        )

    def _list(self, view: JobView, seen: _Seen) -> Answer:
        now = time.time()
        fitting = chosen(seen.rows, view, now)
        lines, at, last = view.part(fitting if view.maker else grouped(fitting))
        shown: dict[str, Any] = {
            "view": view,
            "reader": seen.reader.name,
            "items": [self._line(line, now) for line in lines],
            "columns": {name: heading for name, (heading, _, _) in COLUMNS.items()},
            "count": len(seen.rows),
            "fitting": len(fitting),
            "page_number": at,
            "last_page": last,
            "doing": seen.doing,
            "problems": seen.problems,
            "choices": {
                name: sorted({value for row in seen.rows if (value := getattr(row, name))})
                for name in ("namespace", "queue", "phase", "reason")
            },
            "sums": [
                (heading, sums[:MOST_SUMS], len(sums))
                for heading, sums in (("Namespace", by_namespace(fitting, now)), ("Queue", by_queue(fitting, now)))
                if sums
            ],
            "most": MOST,
        }
        body = page("jobs", {}, title="Jobs", live=COMMAND, **shown).encode()
        return Answer(body, etag=etag(body))

    def _line(self, line: Line, now: float) -> dict[str, Any]:
        """Return what the page shows of a line."""
        created = datetime.fromtimestamp(line.created, UTC)
        made = line if isinstance(line, Made) else None
        row = None if isinstance(line, Made) else line
        return {
            "made": made,
            "row": row,
            "record": row is not None and self._records.has(row),
            "hours": line.held_at(now) / 3600,
            "at": created.isoformat(timespec="seconds"),
            "age": age(created, datetime.now(UTC)),
        }

    def _job(self, row: JobRow) -> Answer:
        """Return the page of a job: as the API server has it now, or as it was when that last answered."""
        problem, found = "", {}
        try:
            found = self._api.get(jobs_path(row.namespace, row.name))
            row = job_row(found)
        except ApiError as error:
            problem = f"The job cannot be read now, so this is what was known of it. ({error})"
        status = found.get("status") or {}
        shown: dict[str, Any] = {
            "row": row,
            "hours": row.held_at(time.time()) / 3600,
            "problem": problem,
            "conditions": conditions(status),
            "failure": status.get("failure") or {},
            "record": self._records.has(row),
        }
        body = page("job", {}, title=row.id, home="../../../", **shown).encode()
        return Answer(body, etag=etag(body))


def _refused(said: str) -> Answer:
    return message("Who are you?", said, HTTPStatus.UNAUTHORIZED, "", headers=ASKS)
