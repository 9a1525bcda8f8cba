"""The pages of the dashboard: the list, one run, several runs over one another. A request names runs by their ids."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from lorarl_trainer.dashboard.files import Copies, Copy
from lorarl_trainer.dashboard.place import Place
from lorarl_trainer.dashboard.row import state_now
from lorarl_trainer.dashboard.view import COLUMNS, PAGE, Group, Run, View, chosen, grouped, view_of
from lorarl_trainer.errors import StorageError
from lorarl_trainer.progress.compare import compare_page, comparison_of
from lorarl_trainer.progress.events_file import EVENTS, parse_events
from lorarl_trainer.progress.metrics_file import SUMMARY
from lorarl_trainer.progress.page import json_in_html, page
from lorarl_trainer.progress.report import report_data, report_page
from lorarl_trainer.progress.standing import RUNNING, STARTING
from lorarl_trainer.progress.tables import age
from lorarl_trainer.progress.web import JSON, Answer, Query

COMMAND = "lorarl dashboard"
FEWEST, MOST = 2, 16
"""How many runs are compared at a time: each has its own colour and line."""
REFUSED = (OSError, ValueError, KeyError, TypeError, AttributeError)
"""What reading a run's files raises if they are no run's, or of another version."""
_RUN = re.compile(r"/run/([0-9a-f]{16})/(data\.json)?")


class Site:
    """Answers requests with pages of the runs in some places. Safe to use from several threads."""

    def __init__(self, places: Sequence[Place], copies: Copies) -> None:
        """`copies`: of the files of runs in stores."""
        self._places, self._copies = places, copies
        self._samples = threading.BoundedSemaphore(2)  # each may take a hundred megabytes for a moment

    def respond(self, path: str, query: Query) -> Answer | None:
        """Return the page of a path; None if there is no such page."""
        if path == "/":
            return self._list(view_of(query))
        if path in ("/compare", "/compare.json"):
            return self._comparison(query.get("run", []), as_data=path.endswith(".json"))
        if found := _RUN.fullmatch(path):
            return self._run(found[1], as_data=found[2] is not None)
        return None

    def _list(self, view: View) -> Answer:
        runs = self._runs()
        fitting = chosen(runs, view)
        items = fitting if view.folder else grouped(fitting)
        last = max(1, -(-len(items) // PAGE))
        at = min(view.page, last)
        doing = [(place.name, text) for place in self._places if (text := place.doing())]
        shown: dict[str, Any] = {
            "view": view,
            "items": [_line(item) for item in items[(at - 1) * PAGE : at * PAGE]],
            "columns": {name: heading for name, (heading, _, _) in COLUMNS.items()},
            "count": len(runs),
            "fitting": len(fitting),
            "page_number": at,
            "last_page": last,
            "doing": doing,
            "problems": [(place.name, place.problem) for place in self._places if place.problem],
            "places": [place.name for place in self._places],
            "choices": {
                "state": _choices(run.state for run in runs),
                "algorithm": _choices(run.row.algorithm for run in runs),
                "model": _choices(run.row.base_model for run in runs),
            },
            "most": MOST,
        }
        body = page("runs", {}, title="Runs", live=COMMAND, **shown).encode()
        return Answer(body, etag=_etag(body))

    def _run(self, run_id: str, *, as_data: bool) -> Answer | None:
        run, place = self._find(run_id)
        if run is None or place is None:
            return None if as_data else _missing("../../")
        copy = self._copies.of(place, run.row.folder)
        try:
            version = f"{run.state} {copy.bring(samples=as_data)}"
            etag = _etag(version.encode())
            if not (copy.folder / SUMMARY).is_file():
                return self._start(run, copy)
            if as_data:
                with self._samples:
                    return Answer(json_in_html(_report(run, copy.folder, samples=True)).encode(), JSON, etag)
            return Answer(report_page(_report(run, copy.folder, samples=False), live=COMMAND, home="../../").encode())
        except StorageError as error:
            return _message(run.row.job, str(error), HTTPStatus.SERVICE_UNAVAILABLE, "../../")
        except REFUSED as error:
            return _message(run.row.job, f"{_said(run, error)}", HTTPStatus.OK, "../../")

    def _start(self, run: Run, copy: Copy) -> Answer:
        """Return the page of a run that has not loaded its model, or ended before it had."""
        events = parse_events((copy.folder / EVENTS).read_bytes())
        lines = [(str(event.get("at", "")), _told(event)) for event in events if event.get("event") != "RunFinished"]
        said = run.row.message or (
            "It has not trained yet." if run.state == STARTING else "It ended before it trained."
        )
        waits = run.state in (RUNNING, STARTING)
        return _message(run.row.job, said, HTTPStatus.OK, "../../", state=run.state, lines=lines, renew=waits)

    def _comparison(self, ids: Sequence[str], *, as_data: bool) -> Answer:
        wanted = list(dict.fromkeys(ids))
        if not FEWEST <= len(wanted) <= MOST:
            said = f"Choose {FEWEST} to {MOST} runs to compare; {len(wanted)} were chosen."
            return _message("Comparison of runs", said, HTTPStatus.BAD_REQUEST, "./")
        reports, names, versions = [], [], []
        for run_id in wanted:
            run, place = self._find(run_id)
            if run is None or place is None:
                return _missing("./")
            copy = self._copies.of(place, run.row.folder)
            try:
                versions.append(f"{run.state} {copy.bring(samples=False)}")
                reports.append(_report(run, copy.folder, samples=False))
            except StorageError as error:
                return _message(run.row.job, str(error), HTTPStatus.SERVICE_UNAVAILABLE, "./")
            except REFUSED as error:
                return _message(run.row.job, f"{_said(run, error)} Leave this run out.", HTTPStatus.OK, "./")
            names.append(f"{place.name}/{run.row.path}")
        comparison = comparison_of(reports, names)
        if as_data:
            return Answer(json_in_html(comparison).encode(), JSON, _etag(repr(versions).encode()))
        return Answer(compare_page(comparison, live=COMMAND, home="./").encode())

    def _runs(self) -> list[Run]:
        now = time.time()
        return [
            Run(place.id_of(row.path), place.name, row, state_now(row, now))
            for place in self._places
            for row in place.rows()
        ]

    def _find(self, run_id: str) -> tuple[Run, Place] | tuple[None, None]:
        for place in self._places:
            if (row := place.row_of(run_id)) is not None:
                return Run(run_id, place.name, row, state_now(row)), place
        return None, None


def _report(run: Run, folder: Path, *, samples: bool) -> dict[str, Any]:
    """Return a run's report. How it stands is what the list says, which also knows of a later start that failed."""
    data = report_data(folder, samples=samples)
    summary = data["summary"] | {"message": run.row.message or data["summary"]["message"]}
    return data | {"summary": summary, "state": run.state}


def _line(item: Run | Group) -> dict[str, Any]:
    """Return what the page shows of a line."""
    changed = item.changed if isinstance(item, Group) else item.row.changed
    moved = datetime.fromtimestamp(changed, UTC)
    group = item if isinstance(item, Group) else None
    return {
        "group": group,
        "run": None if group else item,
        "at": moved.isoformat(timespec="seconds"),
        "age": age(moved, datetime.now(UTC)),
    }


def _choices(values: Any) -> list[str]:
    return sorted({value for value in values if value})


def _told(event: Mapping[str, Any]) -> str:
    return str(event.get("text") or event.get("message") or event.get("event", ""))


def _said(run: Run, error: Exception) -> str:
    return (
        f"The files of {run.place}/{run.row.folder} cannot be shown: they are not whole, or of another version of "
        f"lorarl ({type(error).__name__}: {error})."
    )


def _missing(home: str) -> Answer:
    said = "There is no such run. It may have been deleted, or moved to another folder."
    return _message("No such run", said, HTTPStatus.NOT_FOUND, home)


def _message(
    title: str,
    said: str,
    status: HTTPStatus,
    home: str,
    *,
    state: str = "",
    lines: Sequence[tuple[str, str]] = (),
    renew: bool = False,
) -> Answer:
    body = page("message", {}, title=title, home=home, said=said, state=state, lines=lines, renew=renew)
    return Answer(body.encode(), status=status)


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:20]}"'
