"""The pages of the dashboard of folders and stores. A request names runs by their ids."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lorarl_trainer.dashboard.answers import etag
from lorarl_trainer.dashboard.files import Copies
from lorarl_trainer.dashboard.place import Place
from lorarl_trainer.dashboard.reports import COMMAND, MOST, Found, Reports
from lorarl_trainer.dashboard.row import state_now
from lorarl_trainer.dashboard.view import COLUMNS, Group, Run, View, chosen, grouped
from lorarl_trainer.progress.page import page
from lorarl_trainer.progress.tables import age
from lorarl_trainer.progress.web import Answer, Query

_RUN = re.compile(r"/run/([0-9a-f]{16})/(data\.json)?")


class Site:
    """Answers requests with pages of the runs in some places. Safe to use from several threads."""

    def __init__(self, places: Sequence[Place], copies: Copies) -> None:
        """`copies`: of the files of runs in stores."""
        self._places, self._reports = places, Reports(copies)

    def respond(self, path: str, query: Query) -> Answer | None:
        """Return the page of a path; None if there is no such page."""
        if path == "/":
            return self._list(View.of_query(query))
        if path in ("/compare", "/compare.json"):
            return self._reports.comparison(query.get("run", []), self._find, as_data=path.endswith(".json"))
        if found := _RUN.fullmatch(path):
            return self._reports.of_run(found[1], self._find, "../../", as_data=found[2] is not None)
        return None

    def _list(self, view: View) -> Answer:
        runs = self._runs()
        fitting = chosen(runs, view)
        items = fitting if view.folder else grouped(fitting)
        shown_items, at, last = view.part(items)
        doing = [(place.name, text) for place in self._places if (text := place.doing())]
        shown: dict[str, Any] = {
            "view": view,
            "items": [_line(item) for item in shown_items],
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
        return Answer(body, etag=etag(body))

    def _runs(self) -> list[Run]:
        now = time.time()
        return [
            Run(place.id_of(row.path), place.name, row, state_now(row, now))
            for place in self._places
            for row in place.rows()
        ]

    def _find(self, run_id: str) -> Found | None:
        for place in self._places:
            if (row := place.row_of(run_id)) is not None:
                return Found(Run(run_id, place.name, row, state_now(row)), place.store)
        return None


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
