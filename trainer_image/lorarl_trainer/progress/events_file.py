"""events.jsonl: what happened in a run and when, apart from its steps. Also of a start that failed early."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.environment import this_process
from lorarl_trainer.progress.events import (
    BestFound,
    CheckpointDone,
    Event,
    Noted,
    RecordOpened,
    RunFinished,
    RunStarted,
    Warned,
)
from lorarl_trainer.progress.metrics_file import now
from lorarl_trainer.progress.worker_events import MoreWorkers, WorkersLost

EVENTS = "events.jsonl"
BEGAN = "Began"
"""The first event of each start, with its host and its process."""


def last_event(out_dir: Path) -> dict[str, Any]:
    """Return the newest event in a run's folder; empty if there is none, or its line was not written whole."""
    try:
        lines = (out_dir / EVENTS).read_text(encoding="utf-8").splitlines()
        event: dict[str, Any] = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return {}
    return event


def parse_events(data: bytes) -> list[dict[str, Any]]:
    """Return the events of an events.jsonl, or of a part of one. Lines that are not whole are left out."""
    return list(_parsed(data.decode(errors="replace").splitlines()))


def newest_start(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the events of the newest start. Earlier ones may have used the same folder."""
    return events[max((number for number, event in enumerate(events) if event.get("event") == BEGAN), default=0) :]


def end_of(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the end that a start recorded; None if it did not."""
    return next((event for event in reversed(events) if event.get("event") == "RunFinished"), None)


def _parsed(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a kill cut it short
        if isinstance(event, dict):
            yield event


class EventsFile:
    """Writes events.jsonl, one line per event. Several starts in one folder follow each other."""

    name = EVENTS

    def __init__(self, out_dir: Path) -> None:
        self._path = out_dir / EVENTS
        self._began = False

    def on_event(self, event: Event) -> None:
        """Append an event's line, if it has one."""
        if (line := _line_of(event)) is not None:
            lines = [line] if self._began else [{"event": BEGAN, **this_process()}, line]
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps({"at": now(), **each}, allow_nan=False) + "\n" for each in lines)
            self._began = True

    def close(self) -> None:
        """Do nothing: each line is written at once."""


def _line_of(event: Event) -> dict[str, Any] | None:
    """Return an event as JSON values; None if other files have it."""
    match event:
        case RunStarted():
            return {
                "event": "RunStarted",
                "resumed_from_step": event.resumed_from_step,
                "total_steps": event.total_steps,
                "changes": list(event.changes),
            }
        case Noted() | Warned() | WorkersLost() | MoreWorkers() | RunFinished():
            return {"event": type(event).__name__, **asdict(event)}
        case CheckpointDone() | BestFound() | RecordOpened():
            return {"event": type(event).__name__, **asdict(event)}
        case _:
            return None
