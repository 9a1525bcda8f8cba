"""A run in one row: what its summary, the end of its metrics and its events say."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lorarl_trainer.dashboard.found import FoundRun, Start
from lorarl_trainer.progress.events_file import EVENTS, parse_events
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY, merged, parse_lines, step_seconds
from lorarl_trainer.progress.results import LATEST
from lorarl_trainer.progress.runs import UNREADABLE, newest_result
from lorarl_trainer.progress.standing import STARTING, Standing, standing_of
from lorarl_trainer.storage import Store

END_BYTES = 32_768
"""How much of the end of metrics.jsonl and events.jsonl a row is made from."""
LONGEST_MESSAGE = 300


class Row(NamedTuple):
    """A run in the list.

    Attributes:
        path: its folder in its place.
        folder: of the start that has its curves, or of the newest if none has.
        state: as its files say; `state_now` says whether that is still so.
        message: why it ended, or why it cannot be read.
        result: what `value` is: a held-out score or loss, or the newest reward.
        step_seconds: median of the latest steps.
        changed: when it last wrote, in seconds since 1970.
        starts: how many there are of its record; 1 for a folder.
        host, process: of its newest start, to ask whether it still runs.
    """

    path: str
    folder: str
    job: str
    base_model: str = ""
    algorithm: str = ""
    state: str = STARTING
    message: str = ""
    step: int = 0
    total_steps: int = 0
    result: str = ""
    value: float | None = None
    step_seconds: float | None = None
    changed: float = 0.0
    starts: int = 1
    host: str = ""
    process: str = ""


def read_row(store: Store, found: FoundRun, place: str) -> Row | None:
    """Return the row of a run; None if it is gone. `place`: the name of a run whose files are not in a folder.

    Raises:
        StorageError: the store failed.
    """
    trained, newest = found.trained, found.newest
    summary = store.get(trained.files[SUMMARY].path) if SUMMARY in trained.files else None
    metrics, events = _end(store, trained, METRICS), _end(store, newest, EVENTS)
    if summary is None and events is None:
        return None
    changed = max(entry.changed for entry in newest.files.values())
    row = Row(
        path=found.path,
        folder=trained.folder,
        job=found.path.rpartition("/")[2] or place,
        changed=changed,
        starts=len(found.starts),
    )
    try:
        return row_of(
            row,
            None if summary is None else json.loads(summary),
            merged(parse_lines(metrics or b"")),
            parse_events(events or b""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{SUMMARY} is not whole, or of another version of lorarl ({type(error).__name__}: {error})"
        return row._replace(state=UNREADABLE, message=said[:LONGEST_MESSAGE])


def row_of(
    row: Row, summary: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> Row:
    """Return a row with what a run's files say.

    `rows`: the newest steps. `events`: the newest ones; none in a run of an older version.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the summary is not one.
    """
    standing = standing_of(summary, events)
    row = row._replace(
        state=standing.state,
        message=standing.message[:LONGEST_MESSAGE],
        host=standing.host,
        process=standing.process,
    )
    if summary is None:
        return row
    steps = [each for each in rows if "loss" in each]
    result, value = newest_result(summary, rows)
    return row._replace(
        job=str(summary["job"]),
        base_model=_text(summary, "base_model"),
        algorithm=_text(summary, "algorithm"),
        step=int(steps[-1]["step"]) if steps else int(summary.get("step") or 0),
        total_steps=int(summary["total_steps"]),
        result=result if value is not None else "",
        value=None if value is None else float(value),
        step_seconds=statistics.median(map(step_seconds, steps[-LATEST:])) if steps else None,
    )


def state_now(row: Row, now: float | None = None) -> str:
    """Return the state of a run now, see `Standing.now`. `now`: in seconds since 1970."""
    return Standing(row.state, row.message, row.host, row.process).now(row.changed, now)


def _end(store: Store, start: Start, name: str) -> bytes | None:
    return store.end_of(start.files[name], END_BYTES) if name in start.files else None


def _text(summary: Mapping[str, Any], name: str) -> str:
    return str(summary.get(name) or "")[:LONGEST_MESSAGE]
