"""The folders `runs/<number>/` of a job: one for the record of each start. Which objects there lorarl wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lorarl_trainer.checkpoint.contents import to_json
from lorarl_trainer.checkpoint.owner import Owner
from lorarl_trainer.storage import UPLOADS, Store
from lorarl_trainer.threads import in_parallel

RUNS = "runs"
RUN = "run.json"
"""Says whose the folder is. It is written first, never overwritten, and deleted last."""
FILES = (
    *("metrics.jsonl", "samples.jsonl", "events.jsonl", "run_summary.json", "report.html"),
    *("reward.png", "loss.png", "accuracy.png"),
    *("wandb-run.json", "mlflow-run.json", "logs/*.log", "starts/*.yaml", "tensorboard/events.out.tfevents.*"),
)
"""What a record has besides run.json, as patterns of paths."""
_DIGITS = 4


@dataclass(frozen=True)
class RunOf:
    """The contents of run.json: which start of which job a record is of.

    Attributes:
        attempt: the number that the operator gave this start; None outside a cluster.
        writer: random id of the start.
        host: where it ran, for people.
        started_at: when it began, in RFC 3339.
    """

    owner: Owner
    attempt: int | None
    writer: str
    host: str
    started_at: str

    def to_bytes(self) -> bytes:
        """Return the file's content: JSON."""
        return to_json(
            {
                "job": self.owner.name,
                "namespace": self.owner.namespace,
                "jobUid": self.owner.uid,
                "cluster": self.owner.cluster,
                "attempt": self.attempt,
                "writer": self.writer,
                "host": self.host,
                "startedAt": self.started_at,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> RunOf:
        """Parse the file's content. Raises ValueError if it is not a run.json."""
        try:
            raw = json.loads(data)
            owner = Owner(raw["job"], raw["jobUid"], raw["namespace"], raw["cluster"])
            return cls(owner, raw["attempt"], raw["writer"], raw["host"], raw["startedAt"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"it has no {error}") from None


def next_name(existing: Iterable[str], attempt: int | None) -> str:
    """Return the folder of the next start: the attempt's number, or one above all that exist.

    A queue may start an attempt several times, and a new job of the same name counts its attempts from 1.
    """
    numbers = [number for name in existing if (number := number_of(name)) is not None]
    return f"{max(attempt or 1, 1 + max(numbers, default=0)):0{_DIGITS}}"


def number_of(name: str) -> int | None:
    """Return the number of a record's folder; None if the name is not one."""
    return int(name) if name.isdecimal() and name.isascii() and len(name) >= _DIGITS else None


def is_record_file(path: str) -> bool:
    """Return whether a record may have a file of this path within its folder."""
    return path == RUN or any(path.count("/") == pattern.count("/") and fnmatchcase(path, pattern) for pattern in FILES)


def record_files(listed: Iterable[str]) -> dict[str, list[str]]:
    """Return the records' files in a job's folder by `runs/<number>`, each with paths within that folder.

    A folder without run.json is no record.
    """
    folders: dict[str, list[str]] = {}
    for path in listed:
        top, _, rest = path.partition("/")
        name, _, file = rest.partition("/")
        if top == RUNS and number_of(name) is not None and is_record_file(file):
            folders.setdefault(f"{RUNS}/{name}", []).append(file)
    return {folder: files for folder, files in folders.items() if RUN in files}


def read_run(store: Store, folder: str) -> RunOf | None:
    """Return the run.json of a record's folder; None if it is missing or corrupt."""
    data = store.get(f"{folder}/{RUN}")
    try:
        return None if data is None else RunOf.from_bytes(data)
    except ValueError:
        return None


def read_runs(store: Store, job: str, folders: Sequence[str]) -> dict[str, RunOf]:
    """Return the run.json of each folder `runs/<number>` that has one of this job."""
    found = in_parallel(lambda folder: read_run(store, f"{job}/{folder}"), folders, UPLOADS)
    return {folder: run for folder, run in zip(folders, found, strict=True) if run and run.owner.name == job}


def delete_records(store: Store, job: str, files: Mapping[str, Sequence[str]], uid: str | None = None) -> bool:
    """Delete the records of a job. It may be repeated.

    `uid`: uid of the LoRARLJob whose records to delete; None for all of this name.

    Returns:
        Whether there was one.
    """
    runs = read_runs(store, job, list(files))
    own = [folder for folder, run in runs.items() if uid in (None, run.owner.uid)]
    store.delete([f"{job}/{folder}/{file}" for folder in own for file in files[folder] if file != RUN])
    store.delete([f"{job}/{folder}/{RUN}" for folder in own])
    if own:
        _delete_late_files(store, job, own)
    return bool(own)


def _delete_late_files(store: Store, job: str, folders: Sequence[str]) -> None:
    """Delete what a start wrote while its record was deleted. What it writes later, it takes back itself."""
    found = [entry.path.removeprefix(f"{job}/") for entry in store.entries(f"{job}/{RUNS}")]
    left = {folder: [path for path in found if path.startswith(f"{folder}/")] for folder in folders}
    store.delete(
        [
            f"{job}/{path}"
            for folder, paths in left.items()
            if f"{folder}/{RUN}" not in paths  # another start may have taken the name meanwhile
            for path in paths
            if is_record_file(path.removeprefix(f"{folder}/"))
        ]
    )
