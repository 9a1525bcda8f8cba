"""metrics.jsonl, with one line per step and one per evaluation, each with its time, and run_summary.json.

The report and the final message are made from these two files.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.evaluations import evaluations_of, is_eval_seconds
from lorarl_trainer.progress.events import (
    EVALUATE,
    BestFound,
    CheckpointDone,
    EvalDone,
    Event,
    RunFinished,
    RunStarted,
    StartedUp,
    StepDone,
    Warned,
    row_of,
    startup_of,
)
from lorarl_trainer.progress.worker_events import WorkersLost

METRICS, SUMMARY, REPORT = "metrics.jsonl", "run_summary.json", "report.html"

MOST_WRITING = 0.01
"""The share of a run's time that run_summary.json may take while the run trains."""

type Row = dict[str, Any]


class StepLines:
    """A file in which each line belongs to a step.

    A run that resumes from a checkpoint drops the lines after the checkpoint's step, because it repeats those steps.
    """

    def __init__(self, path: Path) -> None:
        """Name the file. It is opened when a run starts."""
        self._path = path
        self._file: TextIO | None = None

    def start(self, started: RunStarted) -> None:
        """Drop the lines of steps that the run will make, and open the file for appending."""
        # A resumed run never repeats the evaluation before training, which is step 0.
        done = -1 if started.resumed_from_step is None else started.resumed_from_step
        self.close()
        _replace(self._path, "".join(_line(row) for row in read_lines(self._path) if row["step"] <= done))
        self._file = self._path.open("a+", encoding="utf-8")

    def append(self, *rows: Row) -> None:
        """Write lines through to the operating system. Do nothing before the run has started."""
        if self._file is not None:
            if not self._path.exists():
                self._file = self._written_again(self._file)
            self._file.write("".join(_line(row) for row in rows))
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _written_again(self, removed: TextIO) -> TextIO:
        """Write a file that somebody removed, or its folder, while it was open. Its lines can still be read."""
        removed.seek(0)
        lines = removed.read()
        removed.close()
        _replace(self._path, lines)
        return self._path.open("a+", encoding="utf-8")


class MetricsFile:
    """Writes metrics.jsonl.

    A line has reached the operating system before `on_event` returns. So even if the process is killed, no checkpoint
    is ahead of the lines of its steps.
    """

    name = METRICS

    def __init__(self, out_dir: Path) -> None:
        self._lines = StepLines(out_dir / METRICS)

    def on_event(self, event: Event) -> None:
        """Append a step or an evaluation."""
        match event:
            case RunStarted():
                self._lines.start(event)
            case StepDone() | EvalDone():
                self._lines.append({**row_of(event), "at": now()})

    def close(self) -> None:
        self._lines.close()


class SummaryFile:
    """Writes run_summary.json when the run starts, whenever something in it changes, and in full when it ends."""

    name = SUMMARY

    def __init__(self, out_dir: Path) -> None:
        self._out_dir = out_dir
        self._started: RunStarted | None = None
        self._started_up: StartedUp | None = None
        self._finished: RunFinished | None = None
        self._checkpoint: CheckpointDone | None = None
        self._best: BestFound | None = None
        self._warnings: list[str] = []
        self._starts: list[dict[str, Any]] = []
        self._not_before = 0.0

    def on_event(self, event: Event) -> None:
        """Keep what the summary needs."""
        match event:
            case RunStarted():
                self._started = event
                self._starts = [*_earlier_starts(self._out_dir, event), start_of(event)]
                self._write()
            case StartedUp():
                self._started_up = event
                self._write()
            case CheckpointDone():
                self._checkpoint = event
                self._write_if_cheap()
            case BestFound():
                self._best = event
                self._write_if_cheap()
            case Warned() | WorkersLost():
                self._warnings.append(event.text)
                self._write_if_cheap()
            case RunFinished():
                self._finished = event
            case _:
                pass

    def close(self) -> None:
        """Write the file. This happens at the end, so that it includes the warnings of the other sinks."""
        self._write()

    def _write_if_cheap(self) -> None:
        """Write for those who watch the run, unless that took much of the latest time: a write reads all rows."""
        if time.monotonic() >= self._not_before:
            began = time.monotonic()
            self._write()
            self._not_before = began + (time.monotonic() - began) / MOST_WRITING

    def _write(self) -> None:
        if self._started is not None:
            rows = read_rows(self._out_dir / METRICS)
            summary = {
                **summarise(self._started, rows, self._checkpoint, self._finished, self._warnings, self._started_up),
                "starts": self._starts,
                "best": asdict(self._best) if self._best else None,
                "finished_at": now() if self._finished else None,
            }
            _replace(self._out_dir / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")


def summarise(
    started: RunStarted,
    rows: Sequence[Row],
    checkpoint: CheckpointDone | None,
    finished: RunFinished | None,
    warnings: Sequence[str],
    started_up: StartedUp | None = None,
) -> dict[str, Any]:
    """Return the contents of run_summary.json.

    Times are in seconds. `train_seconds` is the sum over all steps, including those before an interruption;
    `total_seconds` is the wall-clock time of this process. `mean_abs_logprob_diff` is the mean over the steps, and
    `worst_mean_abs_logprob_diff` the largest value of a step. `evals` has the results of all evaluations, see
    `evaluations_of`, and `eval_...` repeats those of the first. `startup` says where this process's start-up time went
    (`startup_of`); it is None until the first step is done.
    """
    steps = [row for row in rows if "loss" in row]
    differences = [row["mean_abs_logprob_diff"] for row in steps if row.get("mean_abs_logprob_diff") is not None]
    evals = evaluations_of(rows)
    first = evals[0] if evals else {}
    uri = finished.adapter_uri if finished is not None else None
    return {
        "job": started.job,
        "state": finished.state if finished is not None else "running",
        "message": finished.message if finished is not None else "",
        "base_model": started.base_model,
        "base_revision": started.base_revision,
        "algorithm": started.algorithm,
        "adapter": asdict(started.adapter),
        "adapter_uri": uri or (checkpoint.uri if checkpoint is not None else None),
        "step": finished.step if finished is not None else (started.resumed_from_step or 0),
        "total_steps": started.total_steps,
        "data": asdict(started.data) if started.data is not None else None,
        "reward": started.reward,
        "resumed_from_step": started.resumed_from_step,
        "eval_metric": first.get("metric"),
        "eval_before": first.get("before"),
        "eval_after": first.get("after"),
        "eval_rows": first.get("rows"),
        "evals": evals,
        "mean_abs_logprob_diff": sum(differences) / len(differences) if differences else None,
        "worst_mean_abs_logprob_diff": max(differences, default=None),
        "train_seconds": sum(step_seconds(row) for row in steps),
        "total_seconds": finished.total_seconds if finished is not None else None,
        "startup": startup_of(started_up) if started_up is not None else None,
        "warnings": list(warnings),
        "manifest": started.manifest,
        "manifest_folder": started.manifest_folder,
    }


def start_of(started: RunStarted) -> dict[str, Any]:
    """Return one start of the run as in run_summary.json: when, where, with which versions, and after which step.

    `changes` are the manifest's fields that differ from those of the start before.
    """
    return {
        "at": now(),
        "resumed_from_step": started.resumed_from_step,
        "changes": list(started.changes),
        **asdict(started.environment),
    }


def _earlier_starts(out_dir: Path, started: RunStarted) -> list[dict[str, Any]]:
    """Return the starts that a resumed run continues; none for a run from the start or in a new folder."""
    if started.resumed_from_step is None:
        return []
    try:
        starts: list[dict[str, Any]] = read_summary(out_dir).get("starts", [])
    except (OSError, ValueError):
        return []
    return starts


def now() -> str:
    """Return the time as in RFC 3339, in UTC and whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def step_seconds(row: Mapping[str, Any]) -> float:
    """Return the duration of a step, the sum of its phases."""
    return float(sum(row["seconds"].values()))


def read_rows(path: Path) -> list[Row]:
    """Return the steps of a metrics.jsonl, each merged with its evaluation; an empty list if there is no file."""
    return merged(read_lines(path))


def merged(lines: Iterable[Row]) -> list[Row]:
    """Return the steps of these lines, each merged with its evaluation, whose time counts as part of its step."""
    rows: dict[int, Row] = {}
    for line in lines:
        step = rows.setdefault(line["step"], {})
        step |= line
        seconds = [value for name, value in line.items() if is_eval_seconds(name)]
        if "seconds" in step and seconds:
            step["seconds"] = {**step["seconds"], EVALUATE: step["seconds"].get(EVALUATE, 0.0) + sum(seconds)}
    return list(rows.values())


def read_lines(path: Path) -> list[Row]:
    """Return the lines of a `StepLines` file; an empty list if there is no file.

    A line that was cut short by a kill or a full disk is left out.
    """
    if not path.exists():
        return []
    return parse_lines(path.read_bytes())


def parse_lines(data: bytes) -> list[Row]:
    """Return the lines of a `StepLines` file, or of a part of one. Lines that are not whole are left out."""
    return list(_parse(data.decode(errors="replace").splitlines()))


class UnreadableSummaryError(InputError, ValueError):
    """A run_summary.json is not as a run wrote it."""


def read_summary(out_dir: Path, needs: Collection[str] = ()) -> dict[str, Any]:
    """Return the run_summary.json in `out_dir`. `needs`: what its reader cannot do without.

    Raises:
        OSError: there is none.
        UnreadableSummaryError: it is not whole. A run replaces it as one, so a copy or a disk failed, or another
            program wrote it.
    """
    try:
        summary = json.loads((out_dir / SUMMARY).read_bytes())
        if not isinstance(summary, dict):
            raise TypeError(f"a JSON {type(summary).__name__}")
        if absent := [key for key in needs if key not in summary]:
            raise ValueError(f"it lacks {', '.join(absent)}")
    except (ValueError, TypeError, RecursionError) as error:
        got, hint = f"{out_dir}, whose {SUMMARY} is not whole ({error})", "Copy the folder again, or leave it out."
        raise UnreadableSummaryError("RUN", got, "the folder of a run, with the files that it wrote", hint) from error
    return summary


def last_start_seconds(out_dir: Path) -> float | None:
    """Return how long the last start of the run in `out_dir` took up to its first update; None if that is not known."""
    try:
        return float(read_summary(out_dir)["startup"]["first_update_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _parse(lines: Iterable[str]) -> Iterable[Row]:
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def _line(row: Row) -> str:
    return json.dumps(row, allow_nan=False, default=str) + "\n"  # chat messages may contain dates


def _replace(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
