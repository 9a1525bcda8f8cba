"""Finds the runs under a folder, and says how each stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.evaluations import evaluations_of
from lorarl_trainer.progress.events_file import EVENTS, last_event
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY, UnreadableSummaryError, read_rows, read_summary
from lorarl_trainer.progress.standing import state_in

DEEPEST = 3
"""How many folders below the given one a run is looked for: out/demo/run is two below out."""
UNREADABLE = "unreadable"
"""The state of a run whose summary is not whole."""
QUIET_SECONDS = 120.0
"""A start whose logs have been still for so long is taken for dead."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run in one line of `lorarl list`.

    Attributes:
        state: as `state_in` says, or UNREADABLE.
        score: the newest held-out score or loss with its name, or else the newest reward; empty before the first.
        changed: when its files last did.
    """

    folder: Path
    job: str
    state: str
    step: int
    total_steps: int
    score: str
    changed: datetime


def find_runs(folder: Path) -> list[RunLine]:
    """Return the runs in a folder and below it, the one that changed last first.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        raise InputError("FOLDER", f"{folder}, which is no folder", "a folder with runs", "Name another one.")
    patterns = ["/".join(["*"] * depth + [name]) for depth in range(DEEPEST + 1) for name in (SUMMARY, EVENTS)]
    runs = []
    for run in {path.parent for pattern in patterns for path in folder.glob(pattern)}:
        try:
            runs.append(run_line(run))
        except UnreadableSummaryError:
            runs.append(_unreadable(run))
        except (OSError, ValueError, KeyError):
            continue  # a file of that name that no run wrote, or one that is being deleted
    return sorted(runs, key=lambda run: run.changed, reverse=True)


def run_folder(name: str) -> Path | None:
    """Return the folder of a run: the folder itself, or that of a job's name under out/; None if neither is one."""
    return next((folder for folder in _folders(name) if (folder / SUMMARY).is_file()), None)


def _folders(name: str) -> tuple[Path, ...]:
    return Path(name), Path("out") / name, Path("out") / name / "run"


def find_run(name: str, on_wait: Callable[[Path], None] | None = None) -> Path:
    """Return the folder of a run that a user named: the folder itself, or a job's name under out/.

    `on_wait`: if given, a run that is still starting is waited for, and this is called first with its folder.

    Raises:
        InputError: neither is a run's folder.
    """
    folders = _folders(name)
    if on_wait and run_folder(name) is None and (starting := next(filter(_is_starting, folders), None)):
        on_wait(starting)
        while not (starting / SUMMARY).is_file() and _is_starting(starting):
            time.sleep(1)
    if (found := run_folder(name)) is not None:
        return found
    if failure := early_failure_of(name):
        raise InputError("RUN", f"{name}, which failed before it trained", "a run that has loaded its model", failure)
    known = [str(run.folder) for run in find_runs(Path("out"))] if Path("out").is_dir() else []
    hint = f"Runs here: {', '.join(known[:5])}." if known else "A run's folder is out/NAME, or what --out named."
    lacks = f"has no {SUMMARY}" if any(folder.exists() for folder in _folders(name)) else "does not exist"
    raise InputError("RUN", f"{name}, which {lacks}", "the folder of a run that has loaded its model", hint)


def early_failure_of(name: str) -> str | None:
    """Return why the run that a user named ended before it loaded its model; None if there is none such."""
    return next(filter(None, map(_early_failure, _folders(name))), None)


def _early_failure(folder: Path) -> str | None:
    """Return why a run ended before it loaded its model; None if there is none, or it went further."""
    event = {} if (folder / SUMMARY).is_file() else last_event(folder)
    return f"It said: {event['message']}" if event.get("event") == "RunFinished" else None


def _is_starting(folder: Path) -> bool:
    """Return whether a run writes logs there, but has not loaded its model yet."""
    if _early_failure(folder):
        return False
    written = [path.stat().st_mtime for path in folder.glob("logs/*.log")]
    return bool(written) and time.time() - max(written) < QUIET_SECONDS


def run_line(folder: Path) -> RunLine:
    """Return the line of the run in a folder. Raises OSError, ValueError or KeyError if its files are no run's."""
    return _line(folder) if (folder / SUMMARY).exists() else _start_line(folder)


def newest_result(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> tuple[str, float | None]:
    """Return the newest held-out score or loss of a run with its name, or else the newest reward; None before any.

    `rows`: its newest steps. An evaluation before these is in the summary.
    """
    newer = evaluations_of(rows)
    if evaluations := summary.get("evals") or newer:
        first = next((each for each in newer if each["name"] == evaluations[0]["name"]), evaluations[0])
        return f"held-out {first['metric']}", first["before"] if first["after"] is None else first["after"]
    return "reward", next((row["reward_mean"] for row in reversed(rows) if row.get("reward_mean") is not None), None)


def _start_line(folder: Path) -> RunLine:
    """Return the line of a run that has not loaded its model."""
    changed = datetime.fromtimestamp((folder / EVENTS).stat().st_mtime, UTC)
    return RunLine(folder, job=folder.name, state=state_in(folder), step=0, total_steps=0, score="", changed=changed)


def _unreadable(folder: Path) -> RunLine:
    changed = datetime.fromtimestamp((folder / SUMMARY).stat().st_mtime, UTC)
    return RunLine(folder, job=folder.name, state=UNREADABLE, step=0, total_steps=0, score="", changed=changed)


def _line(folder: Path) -> RunLine:
    summary, rows = read_summary(folder), read_rows(folder / METRICS)
    steps = [row for row in rows if "loss" in row]
    newest = max((folder / name).stat().st_mtime for name in (METRICS, SUMMARY, EVENTS) if (folder / name).exists())
    name, value = newest_result(summary, rows)
    return RunLine(
        folder=folder,
        job=summary["job"],
        state=state_in(folder),
        step=steps[-1]["step"] if steps else 0,
        total_steps=summary["total_steps"],
        score="" if value is None else f"{name} {value:.3f}",
        changed=datetime.fromtimestamp(newest, UTC),
    )
