"""The runs in a listing: folders with a run's files, and the records of a job's starts as one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lorarl_trainer.checkpoint.runs import RUN, RUNS, number_of
from lorarl_trainer.progress.events_file import EVENTS
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY
from lorarl_trainer.storage.base import Entry

NAMES = (SUMMARY, METRICS, EVENTS, RUN)
"""The files whose versions say whether a run has changed."""


@dataclass(frozen=True)
class Start:
    """A folder with a run's files, by their names. A job in a cluster has one for each of its starts."""

    folder: str
    files: Mapping[str, Entry]

    @property
    def version(self) -> str:
        """Changes with the files."""
        return " ".join(f"{name}:{self.files[name].version}:{self.files[name].size}" for name in sorted(self.files))


@dataclass(frozen=True)
class FoundRun:
    """A run.

    Attributes:
        path: its folder in the store; of a job with records, the job's.
        starts: oldest first.
    """

    path: str
    starts: tuple[Start, ...]

    @property
    def newest(self) -> Start:
        """The start that says how the run stands."""
        return self.starts[-1]

    @property
    def trained(self) -> Start:
        """The newest start with curves. One that resumed has those of the starts before it."""
        return next((each for each in reversed(self.starts) if {METRICS, SUMMARY} <= each.files.keys()), self.newest)

    @property
    def version(self) -> str:
        """Changes with the files that the run's row is made from."""
        return f"{len(self.starts)} {self.newest.version} {self.trained.version}"


def find_runs(entries: Iterable[Entry]) -> list[FoundRun]:
    """Return the runs whose files, named as in NAMES, a listing has.

    A run's folder has a summary or events. A job's folder `runs/<number>` is a record only with its run.json.
    """
    folders: dict[str, dict[str, Entry]] = {}
    for entry in entries:
        folder, _, name = entry.path.rpartition("/")
        folders.setdefault(folder, {})[name] = entry
    runs: dict[str, list[Start]] = {}
    for folder in sorted(folders, key=_order):
        files = folders[folder]
        job = _job_of(folder)
        if (SUMMARY in files or EVENTS in files) and (job is None or RUN in files):
            runs.setdefault(folder if job is None else job, []).append(Start(folder, files))
    return [FoundRun(path, tuple(starts)) for path, starts in runs.items()]


def _job_of(folder: str) -> str | None:
    """Return the folder of the job whose record this is; None if it is no record."""
    above, _, name = folder.rpartition("/")
    job, _, runs = above.rpartition("/")
    return job if runs == RUNS and number_of(name) is not None else None


def _order(folder: str) -> tuple[str, int]:
    above, _, name = folder.rpartition("/")
    return above, number_of(name) or 0
