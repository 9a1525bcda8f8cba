"""The folders of a job's records in its store: a start takes one for itself, and reads those of earlier starts."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from lorarl_trainer.checkpoint import CheckpointStore, Owner
from lorarl_trainer.checkpoint.latest import SWAP_ATTEMPTS
from lorarl_trainer.checkpoint.runs import RUN, RUNS, RunOf, next_name, number_of
from lorarl_trainer.errors import StorageError
from lorarl_trainer.progress import METRICS
from lorarl_trainer.storage import UPLOADS, Data, Store
from lorarl_trainer.threads import in_parallel

CONTINUED = (
    *("metrics.jsonl", "samples.jsonl", "run_summary.json", "wandb-run.json", "mlflow-run.json"),
    *("starts/*.yaml", "tensorboard/events.out.tfevents.*"),
)
"""What a run continues, as patterns of paths. Logs, events and the report are of one start."""


@dataclass(frozen=True)
class RecordFolder:
    """The record of one start: `<store>/<job>/runs/<name>/`."""

    store: Store
    job: str
    name: str
    run: RunOf

    @property
    def uri(self) -> str:
        """Its URI, without secrets."""
        return self.store.uri_of(self._path(""))

    def is_ours(self) -> bool:
        """Return whether it still belongs to this start. A clean-up may have deleted it."""
        return self.store.get(self._path(RUN)) == self.run.to_bytes()

    def put(self, path: str, data: Data) -> None:
        """Write one of its files."""
        self.store.put(self._path(path), data)

    def take_back_if_deleted(self, paths: Sequence[str]) -> bool:
        """Delete files that were written while the record was being deleted. What deletes it may not have seen them.

        Returns:
            Whether the record still belongs to this start.
        """
        found = self.store.get(self._path(RUN))
        if found is None:
            self.store.delete([self._path(path) for path in paths])
        return found == self.run.to_bytes()

    def restore(self, out_dir: Path) -> str | None:
        """Copy the curves and samples of the newest earlier start into a run's folder.

        Returns:
            The URI of its record; None if no earlier start has metrics.
        """
        for name in sorted(earlier_names(self.store, self.job, self.name), reverse=True):
            prefix = f"{self.job}/{RUNS}/{name}"
            paths = [entry.path.removeprefix(f"{prefix}/") for entry in self.store.entries(prefix)]
            if METRICS in paths:
                download(self.store, prefix, [path for path in paths if _is_continued(path)], out_dir)
                return self.store.uri_of(prefix)
        return None

    def _path(self, path: str) -> str:
        return f"{self.job}/{RUNS}/{self.name}/{path}".rstrip("/")


def download(store: Store, prefix: str, paths: Sequence[str], folder: Path) -> None:
    """Copy files of a record to a folder of this machine, by their paths in the record's folder `prefix`."""
    in_parallel(lambda path: store.download_file(f"{prefix}/{path}", folder / path), paths, UPLOADS)


def _is_continued(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in CONTINUED)


def earlier_names(store: Store, job: str, name: str) -> list[str]:
    """Return the folders of the starts before the one that has the folder `name`."""
    own = number_of(name) or 0
    return [other for other in store.folders(f"{job}/{RUNS}") if (number := number_of(other)) and number < own]


def claim_folder(checkpoints: CheckpointStore, owner: Owner, attempt: int | None) -> RecordFolder:
    """Take the next free folder for the record of this start. No other start ever writes there.

    `checkpoints`: the job's. Nothing is written where it could not publish. `attempt`: the number that the operator
    gave this start; None outside a cluster.

    Raises:
        InputError: the job's folder belongs to another job, or to another program.
        StorageError: the store failed.
    """
    checkpoints.require_own_folder()
    store, job = checkpoints.store, checkpoints.job
    host = f"{socket.gethostname()}, process {os.getpid()}"
    run = RunOf(owner, attempt, secrets.token_hex(8), host, f"{datetime.now(UTC):%FT%TZ}")
    for _ in range(SWAP_ATTEMPTS):
        name = next_name(store.folders(f"{job}/{RUNS}"), attempt)
        if store.put_if_absent(f"{job}/{RUNS}/{name}/{RUN}", run.to_bytes()):
            return RecordFolder(store, job, name, run)
    raise StorageError(f"{store.uri_of(job)}/{RUNS}: {SWAP_ATTEMPTS} other starts of this job were faster.")
