"""The run of a job in the stores that the page may read.

A job's status names its record, and the job's pods write that part of the status. So they could name another's: a run
is shown only if its own run.json, which is written first and never again, names this very LoRARLJob by its uid.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

from lorarl_trainer.checkpoint.runs import RUNS, number_of, read_run
from lorarl_trainer.dashboard.cluster.jobs import JobRow
from lorarl_trainer.dashboard.found import NAMES, FoundRun, find_runs
from lorarl_trainer.dashboard.reports import Found
from lorarl_trainer.dashboard.row import read_row, state_now
from lorarl_trainer.dashboard.view import Run
from lorarl_trainer.storage import UPLOADS, Store
from lorarl_trainer.threads import in_parallel

FRESH_SECONDS = 10.0
"""How often a record is looked at while its page is open."""
MOST_KEPT = 256


class Records:
    """Finds runs. Safe to use from several threads."""

    def __init__(self, stores: Sequence[Store]) -> None:
        """`stores`: those that the page may read."""
        self._stores, self._lock = stores, threading.Lock()
        self._kept: OrderedDict[tuple[str, str], tuple[float, Found | None]] = OrderedDict()

    def has(self, row: JobRow) -> bool:
        """Return whether a job's record is in one of the stores, by its status. Nothing is asked."""
        return self._place(row) is not None

    def find(self, row: JobRow) -> Found | None:
        """Return the run of a job; None if there is none in the stores, or it is another job's.

        Raises:
            StorageError: the store failed.
        """
        if (place := self._place(row)) is None:
            return None
        key = (row.uid, row.record)
        with self._lock:
            known = self._kept.get(key)
        if known is not None and time.monotonic() - known[0] < FRESH_SECONDS:
            return known[1]
        found = _find(*place, row)
        with self._lock:
            self._kept[key] = (time.monotonic(), found)
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return found

    def _place(self, row: JobRow) -> tuple[Store, str] | None:
        """Return the store of a job's record, and the job's folder in it."""
        for store in self._stores:
            if row.record.startswith(f"{store.uri}/") and (folder := job_folder(row, store.uri)):
                return store, folder
        return None


def job_folder(row: JobRow, uri: str) -> str:
    """Return a job's folder in the store of this URI; empty if the record is not named as those of this job are."""
    parts = row.record.removeprefix(f"{uri}/").rstrip("/").split("/")
    match parts:
        case [*_, name, runs, number] if name == row.name and runs == RUNS and number_of(number) is not None:
            return "" if {"", ".", ".."} & set(parts) else "/".join(parts[:-2])
    return ""


def _find(store: Store, folder: str, row: JobRow) -> Found | None:
    listed = store.entries(f"{folder}/{RUNS}")
    runs = find_runs(entry for entry in listed if entry.path.rpartition("/")[2] in NAMES)
    found = next((run for run in runs if run.path == folder), None)
    if found is None:
        return None
    owners = in_parallel(lambda start: read_run(store, start.folder), found.starts, UPLOADS)
    own = tuple(
        start for start, run in zip(found.starts, owners, strict=True) if run is not None and run.owner.uid == row.uid
    )
    if not own or (line := read_row(store, FoundRun(folder, own), row.name)) is None:
        return None
    return Found(Run(row.id, row.namespace, line._replace(path=row.name), state_now(line)), store)
