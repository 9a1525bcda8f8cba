"""The LoRARLJobs of a cluster or a namespace, as the API server reports them: listed once, then watched."""

from __future__ import annotations

import threading
import time
import traceback
from typing import Any

from lorarl_trainer.dashboard.cluster.api import GONE, Api, ApiError, jobs_path
from lorarl_trainer.dashboard.cluster.jobs import JobRow, job_row

LIST_PAGE = 500
"""Jobs of a request, so that memory holds these and the lines alone."""
AGAIN_SECONDS = 2.0
"""How soon the API server is asked again if it did not answer."""


class WatchedJobs:
    """The lines of the jobs. They stay while the API server is away, and `problem` says so."""

    def __init__(self, api: Api, namespace: str | None = None) -> None:
        """`namespace`: None for all. Nothing is asked yet."""
        self.namespace = namespace
        self._api, self._path = api, jobs_path(namespace)
        self._lock = threading.Lock()
        self._rows: dict[str, JobRow] = {}
        self._version = ""
        self.seen = 0
        """Jobs that the list under way has had so far."""
        self.listed = False
        """Whether there ever was a whole list."""
        self.problem = ""
        """Why the newest request failed, and since when; empty while all goes well."""

    def rows(self) -> list[JobRow]:
        """Return the jobs."""
        with self._lock:
            return list(self._rows.values())

    def follow(self) -> None:
        """Follow the jobs. Does not return."""
        while True:
            try:
                self.look()
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""  # too many changes were missed
                    continue
                self.problem = self.problem or f"Since {time.strftime('%H:%M:%S %Z')}: {error}"
            except Exception as error:  # noqa: BLE001 - whatever it is, the page says so, and the next look follows
                traceback.print_exc()
                self._version = ""
                self.problem = f"a fault of lorarl: {type(error).__name__}: {error}"
            else:
                continue
            time.sleep(AGAIN_SECONDS)

    def look(self) -> None:
        """List the jobs unless that was done, and take in what changes until the watch ends.

        Raises:
            ApiError: the API server is away or refuses. The next call continues from there.
        """
        if not self._version:
            self._list()
        events = self._api.watch(self._path, self._version)
        self.problem = ""
        for event in events:
            self._take(event)

    def _list(self) -> None:
        rows: dict[str, JobRow] = {}
        self.seen = 0
        query = {"limit": str(LIST_PAGE)}
        while True:
            answer = self._api.get(self._path, query)
            rows |= {row.id: row for row in map(job_row, answer.get("items") or ())}
            self.seen = len(rows)
            if not (token := answer["metadata"].get("continue")):
                break
            query["continue"] = token
        with self._lock:
            self._rows = rows
        self._version, self.listed = answer["metadata"]["resourceVersion"], True

    def _take(self, event: dict[str, Any]) -> None:
        found = event["object"]
        with self._lock:
            if event["type"] == "DELETED":
                self._rows.pop(f"{found['metadata']['namespace']}/{found['metadata']['name']}", None)
            elif event["type"] != "BOOKMARK":
                row = job_row(found)
                self._rows[row.id] = row
        self._version = found["metadata"]["resourceVersion"]
