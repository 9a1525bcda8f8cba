"""The pages of runs: one run's report, and several over one another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from lorarl_trainer.dashboard.answers import etag, message, missing
from lorarl_trainer.dashboard.files import Copies, Copy
from lorarl_trainer.dashboard.view import Run
from lorarl_trainer.errors import StorageError
from lorarl_trainer.progress.compare import compare_page, comparison_of
from lorarl_trainer.progress.events_file import EVENTS, parse_events
from lorarl_trainer.progress.metrics_file import SUMMARY
from lorarl_trainer.progress.page import json_in_html
from lorarl_trainer.progress.report import report_data, report_page
from lorarl_trainer.progress.standing import RUNNING, STARTING
from lorarl_trainer.progress.web import JSON, Answer
from lorarl_trainer.storage import Store

COMMAND = "lorarl dashboard"
FEWEST, MOST = 2, 16
"""How many runs are compared at a time: each has its own colour and line."""
REFUSED = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a run's files raises if they are no run's, or of another version."""


class Found(NamedTuple):
    """A run and the store that has its files."""

    run: Run
    store: Store


type Find = Callable[[str], Found | None]
"""From the id in an address to the run; None if there is none that the reader may see. Raises StorageError."""


class Reports:
    """Makes the pages. Safe to use from several threads."""

    def __init__(self, copies: Copies) -> None:
        """`copies`: of the files of runs in stores."""
        self._copies = copies
        self._samples = threading.BoundedSemaphore(2)  # each may take a hundred megabytes for a moment

    def of_run(self, run_id: str, find: Find, home: str, *, as_data: bool) -> Answer | None:
        """Return the report of a run; with `as_data` what its page asks for, or None without such a run.

        `home`: the address of the list, seen from the page.
        """
        try:
            if (found := find(run_id)) is None:
                return None if as_data else missing(home)
        except StorageError as error:
            return message(run_id, str(error), HTTPStatus.SERVICE_UNAVAILABLE, home)
        run = found.run
        copy = self._copies.of(found.store, run.row.folder)
        try:
            tag = etag(f"{run.state} {copy.bring(samples=as_data)}".encode())
            if not (copy.folder / SUMMARY).is_file():
                return _start(run, copy, home)
            if as_data:
                with self._samples:
                    return Answer(json_in_html(_report(run, copy.folder, samples=True)).encode(), JSON, tag)
            return Answer(report_page(_report(run, copy.folder, samples=False), live=COMMAND, home=home).encode())
        except StorageError as error:
            return message(run.row.job, str(error), HTTPStatus.SERVICE_UNAVAILABLE, home)
        except REFUSED as error:
            return message(run.row.job, f"{_said(run, error)}", HTTPStatus.OK, home)

    def comparison(self, ids: Sequence[str], find: Find, *, as_data: bool) -> Answer:
        """Return a page with the curves of several runs, or its data."""
        wanted = list(dict.fromkeys(ids))
        if not FEWEST <= len(wanted) <= MOST:
            said = f"Choose {FEWEST} to {MOST} runs to compare; {len(wanted)} were chosen."
            return message("Comparison of runs", said, HTTPStatus.BAD_REQUEST, "./")
        reports, names, versions = [], [], []
        for run_id in wanted:
            try:
                if (found := find(run_id)) is None:
                    return missing("./")
            except StorageError as error:
                return message(run_id, str(error), HTTPStatus.SERVICE_UNAVAILABLE, "./")
            run = found.run
            copy = self._copies.of(found.store, run.row.folder)
            try:
                versions.append(f"{run.state} {copy.bring(samples=False)}")
                reports.append(_report(run, copy.folder, samples=False))
            except StorageError as error:
                return message(run.row.job, str(error), HTTPStatus.SERVICE_UNAVAILABLE, "./")
            except REFUSED as error:
                return message(run.row.job, f"{_said(run, error)} Leave this run out.", HTTPStatus.OK, "./")
            names.append(f"{run.place}/{run.row.path}")
        comparison = comparison_of(reports, names)
        if as_data:
            return Answer(json_in_html(comparison).encode(), JSON, etag(repr(versions).encode()))
        return Answer(compare_page(comparison, live=COMMAND, home="./").encode())


def _start(run: Run, copy: Copy, home: str) -> Answer:
    """Return the page of a run that has not loaded its model, or ended before it had."""
    events = parse_events((copy.folder / EVENTS).read_bytes())
    lines = [(str(event.get("at", "")), _told(event)) for event in events if event.get("event") != "RunFinished"]
    said = run.row.message or ("It has not trained yet." if run.state == STARTING else "It ended before it trained.")
    waits = run.state in (RUNNING, STARTING)
    return message(run.row.job, said, HTTPStatus.OK, home, state=run.state, lines=lines, renew=waits)


def _report(run: Run, folder: Path, *, samples: bool) -> dict[str, Any]:
    """Return a run's report. How it stands is what the list says, which also knows of a later start that failed."""
    data = report_data(folder, samples=samples)
    summary = data["summary"] | {"message": run.row.message or data["summary"]["message"]}
    return data | {"summary": summary, "state": run.state}


def _told(event: Mapping[str, Any]) -> str:
    return str(event.get("text") or event.get("message") or event.get("event", ""))


def _said(run: Run, error: Exception) -> str:
    return (
        f"The files of {run.place}/{run.row.folder} cannot be shown: they are not whole, or of another version of "
        f"lorarl ({type(error).__name__}: {error})."
    )
