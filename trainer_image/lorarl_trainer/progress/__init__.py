"""The progress of a run: what a person sees during training, and the files that remain afterwards.

The loop makes events (`events.py`) and gives them to a `Progress`, which passes them to its sinks. At the end
`write_report` makes report.html and reward.png from the files alone, and `final_message` says how to load the adapter.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from lorarl_api.v1alpha1 import TrackingSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.console import ConsoleSink
from lorarl_trainer.progress.downloads import downloads_to, show_downloads
from lorarl_trainer.progress.environment import this_environment
from lorarl_trainer.progress.events import (
    PHASES,
    AdapterSummary,
    BestFound,
    CheckpointDone,
    DataSummary,
    Downloading,
    EvalDone,
    Event,
    HeldOut,
    Noted,
    RecordOpened,
    RunFinished,
    RunStarted,
    Sampled,
    StartedUp,
    StepDone,
    Warned,
    is_time_column,
    results_of,
)
from lorarl_trainer.progress.events_file import EventsFile
from lorarl_trainer.progress.fanout import Progress, Sink
from lorarl_trainer.progress.metrics_file import (
    METRICS,
    SUMMARY,
    MetricsFile,
    SummaryFile,
    last_start_seconds,
    read_lines,
    read_rows,
    read_summary,
)
from lorarl_trainer.progress.report import write_report
from lorarl_trainer.progress.samples import SamplesFile
from lorarl_trainer.progress.shown import FurtherSequence, ScoredSample
from lorarl_trainer.progress.start_bar import duration
from lorarl_trainer.progress.trackers import Secrets, trackers
from lorarl_trainer.progress.usage import fallen_lines, final_message, no_gain_line, open_command, report_line
from lorarl_trainer.progress.worker_events import MoreWorkers, WorkersLost

__all__ = [
    "METRICS",
    "PHASES",
    "SUMMARY",
    "AdapterSummary",
    "BestFound",
    "CheckpointDone",
    "DataSummary",
    "Downloading",
    "EvalDone",
    "Event",
    "FurtherSequence",
    "HeldOut",
    "MoreWorkers",
    "Noted",
    "Progress",
    "RecordOpened",
    "RunFinished",
    "RunStarted",
    "Sampled",
    "ScoredSample",
    "Sink",
    "StartedUp",
    "StepDone",
    "Warned",
    "WorkersLost",
    "downloads_to",
    "duration",
    "fallen_lines",
    "final_message",
    "is_time_column",
    "no_gain_line",
    "open_command",
    "open_progress",
    "read_lines",
    "read_rows",
    "read_summary",
    "report_line",
    "results_of",
    "show_downloads",
    "this_environment",
    "write_report",
]


def open_progress(
    out_dir: Path,
    tracking: TrackingSpec,
    secrets: Secrets,
    more: Sequence[Sink] = (),
    *,
    uid: str | None = None,
    stream: TextIO | None = None,
) -> Progress:
    """Return a `Progress` that prints to `stream`, writes files to `out_dir`, and feeds the trackers of spec.tracking.

    `uid`: the job's; None outside a cluster. `stream`: where to print; standard output by default.

    Raises:
        InputError: The folder cannot be created, or spec.tracking needs a package that is not installed or a key that
            its Secret lacks.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        got = f"{out_dir}, which cannot be created ({error.strerror})"
        raise InputError("--out", got, "a folder for the run's files", "Choose another one.") from error
    console = ConsoleSink(stream or sys.stdout, last_start_seconds(out_dir))
    return Progress(
        direct=[MetricsFile(out_dir), SamplesFile(out_dir), EventsFile(out_dir), SummaryFile(out_dir)],
        queued=[console, *trackers(tracking, secrets, out_dir, uid), *more],
    )
