"""How a run stands, by its summary and its events: the one answer of `lorarl list`, the dashboard and the report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorarl_trainer.progress.environment import is_running
from lorarl_trainer.progress.events_file import BEGAN, EVENTS, end_of, newest_start, parse_events
from lorarl_trainer.progress.metrics_file import SUMMARY, read_summary

RUNNING, STARTING, STOPPED, UNKNOWN = "running", "starting", "stopped", "running or lost"
SILENT_SECONDS = 1800.0
"""A run elsewhere that has written nothing for so long may be lost."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands.

    Attributes:
        state: as its files say; `now` says whether that is still so.
        message: why it ended, if it did.
        host, process: of its newest start, to ask whether it still runs; empty if its files do not say.
    """

    state: str
    message: str = ""
    host: str = ""
    process: str = ""

    def now(self, changed: float, at: float | None = None) -> str:
        """Return the state now: a run whose process is gone has stopped, and one that has long been silent may be lost.

        `changed`: when its files last did. `at`: now. Both in seconds since 1970.
        """
        if self.state not in (RUNNING, STARTING):
            return self.state
        if (alive := is_running(self.host, self.process)) is not None:
            return self.state if alive else STOPPED
        return UNKNOWN if (at or time.time()) - changed > SILENT_SECONDS else self.state


def standing_of(summary: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]]) -> Standing:
    """Return how a run stands.

    `summary`: None before the first start has loaded its model. `events`: the newest ones; none in a run of an older
    version.

    Raises:
        KeyError, TypeError, AttributeError: the summary is not one.
    """
    start = newest_start(events)
    began = start[0] if start and start[0].get("event") == BEGAN else {}
    latest = ((summary or {}).get("starts") or [{}])[-1]
    host, process = (str(began.get(name) or latest.get(name, "")) for name in ("host", "process"))
    if (end := end_of(start)) is not None:
        return Standing(str(end["state"]), str(end["message"]), host, process)
    if summary is None:
        return Standing(STARTING, "", host, process)
    # Events come first: a summary of an end that they do not have is of an earlier start.
    state = str(summary["state"])
    state = STARTING if start and state != RUNNING else state
    return Standing(state, str(summary.get("message") or ""), host, process)


def state_in(folder: Path) -> str:
    """Return the state now of the run in a folder.

    Raises:
        OSError, ValueError, KeyError, TypeError: its files are no run's.
    """
    files = [path for name in (SUMMARY, EVENTS) if (path := folder / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{folder} has neither {SUMMARY} nor {EVENTS}")
    summary = read_summary(folder) if (folder / SUMMARY) in files else None
    events = parse_events((folder / EVENTS).read_bytes()) if (folder / EVENTS) in files else []
    return standing_of(summary, events).now(max(path.stat().st_mtime for path in files))
