"""The records of a job, as one reads them after the pods: which runs there were, and how each ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorarl_trainer.checkpoint.runs import RUNS, RunOf, number_of, read_runs, record_files
from lorarl_trainer.errors import InputError
from lorarl_trainer.progress.events_file import EVENTS, end_of, newest_start, parse_events
from lorarl_trainer.progress.metrics_file import METRICS, SUMMARY
from lorarl_trainer.progress.samples import SAMPLES
from lorarl_trainer.progress.standing import UNKNOWN
from lorarl_trainer.record.folder import download
from lorarl_trainer.storage import UPLOADS, Store
from lorarl_trainer.threads import in_parallel

CURVES = (METRICS, SAMPLES, SUMMARY)
"""What a report is made of."""
LOST = "lost"
"""The state of a run that recorded no end, if it is not the newest one, which may still be under way."""


@dataclass(frozen=True)
class RunHistory:
    """What the record says about one start of a job.

    Attributes:
        name: its folder in runs/.
        files: paths of its files, within that folder.
        resumed_from: the step that it resumed from; None if it did not, or ended before.
        step: the last step that is known, of a checkpoint or of its end.
        state: succeeded, interrupted, failed, or one of UNKNOWN and LOST.
        reason: why it ended, in one CamelCase word; empty if it is not known.
        message: the same for people.
    """

    name: str
    run: RunOf
    files: tuple[str, ...]
    resumed_from: int | None
    step: int
    state: str
    reason: str
    message: str
    warnings: tuple[str, ...]


class JobRecord:
    """The records of one job."""

    def __init__(self, store: Store, job: str) -> None:
        """Nothing is read yet."""
        self._store, self._job = store, job
        self.uri = store.uri_of(f"{job}/{RUNS}")

    def history(self) -> list[RunHistory]:
        """Return all runs, in the order of their starts.

        Raises:
            InputError: there is no record.
            StorageError: the store failed.
        """
        prefix = f"{self._job}/"
        listed = [entry.path.removeprefix(prefix) for entry in self._store.entries(f"{self._job}/{RUNS}")]
        files = record_files(listed)
        runs = read_runs(self._store, self._job, sorted(files, key=_number))
        if not runs:
            hint = "A job has a record as soon as its first driver runs. Check the URI."
            raise InputError("the record", f"{self.uri}, which has none", f"a record of the job {self._job}", hint)
        folders = list(runs)
        events = in_parallel(self._events, folders, UPLOADS)
        return [
            history_of(folder.partition("/")[2], runs[folder], files[folder], lines, newest=folder == folders[-1])
            for folder, lines in zip(folders, events, strict=True)
        ]

    def read(self, run: RunHistory, path: str) -> bytes:
        """Return a file of a run's record; empty if it is gone."""
        return self._store.get(f"{self._job}/{RUNS}/{run.name}/{path}") or b""

    def fetch(self, folder: Path) -> RunHistory:
        """Copy what the report of the newest run that trained is made of into a folder of this machine.

        Raises:
            InputError: no run has trained yet.
        """
        trained = [run for run in self.history() if {METRICS, SUMMARY} <= set(run.files)]
        if not trained:
            hint = "`kubectl lorarl why` says how they ended."
            raise InputError("the record", f"{self.uri}, whose runs never trained", "a run that has trained", hint)
        newest = trained[-1]
        paths = [path for path in CURVES if path in newest.files]
        download(self._store, f"{self._job}/{RUNS}/{newest.name}", paths, folder)
        return newest

    def _events(self, folder: str) -> list[dict[str, Any]]:
        return parse_events(self._store.get(f"{self._job}/{folder}/{EVENTS}") or b"")


def history_of(
    name: str, run: RunOf, files: Sequence[str], events: Sequence[Mapping[str, Any]], *, newest: bool
) -> RunHistory:
    """Return what the events of a run say about it.

    `newest`: whether no later run has a record.
    """
    events = newest_start(events)
    end = end_of(events)
    nothing: Mapping[str, Any] = {}
    started = next((event for event in reversed(events) if event.get("event") == "RunStarted"), nothing)
    saved = [int(event["step"]) for event in events if event.get("event") == "CheckpointDone"]
    resumed_from = started.get("resumed_from_step")
    known = [*saved, resumed_from or 0, int(end["step"]) if end else 0]
    return RunHistory(
        name=name,
        run=run,
        files=tuple(files),
        resumed_from=resumed_from,
        step=max(known),
        state=str(end["state"]) if end else UNKNOWN if newest else LOST,
        reason=str(end["reason"]) if end else "",
        message=str(end["message"]) if end else "",
        warnings=tuple(str(event["text"]) for event in events if event.get("event") in ("Warned", "WorkersLost")),
    )


def split_uri(uri: str) -> tuple[str, str]:
    """Return the store's URI and the job's name of a record: `s3://team/adapters/gsm8k`, also with `/runs/0002`.

    Raises:
        InputError: it names no job.
    """
    parts = uri.rstrip("/").split("/")
    if number_of(parts[-1]) is not None and parts[-2:-1] == [RUNS]:
        parts.pop()
    if parts[-1] == RUNS:
        parts.pop()
    store, job = "/".join(parts[:-1]), parts[-1]
    if not job or not store or store.endswith((":/", "://")):
        hint = "`kubectl get lrj NAME -o jsonpath={.status.record}` shows it."
        raise InputError("--record", uri, "the folder of a job, such as s3://team/adapters/gsm8k", hint)
    return store, job


def _number(folder: str) -> int:
    return number_of(folder.partition("/")[2]) or 0
