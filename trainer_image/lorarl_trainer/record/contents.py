"""Which of a run's files its record has, and how long ones are cut."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from lorarl_trainer.checkpoint.runs import FILES
from lorarl_trainer.progress.events_file import EVENTS
from lorarl_trainer.progress.samples import SAMPLES

LOG_BYTES = 4_000_000
"""The end of a log that a record keeps."""
SAMPLES_BYTES = 16_000_000
"""The end of samples.jsonl and of events.jsonl that a record keeps."""
TENSORBOARD_BYTES = 64_000_000
"""A longer file of TensorBoard's is left out. Its end alone could not be read."""
MOST_LOGS = 32
DRIVER_LOG = "logs/driver.log"


@dataclass(frozen=True)
class RecordFile:
    """A file of a record.

    Attributes:
        changed: when it was changed, in nanoseconds.
    """

    path: str
    source: Path
    size: int
    changed: int

    @property
    def left_out(self) -> bool:
        """Whether it is too large for a record."""
        return self.path.startswith("tensorboard/") and self.size > TENSORBOARD_BYTES

    def read(self) -> bytes:
        """Return what the record has of it: all, or its end after a line that says how much is missing.

        Raises:
            OSError: it cannot be read.
        """
        if self.path.startswith("logs/"):
            return tail(self.source, LOG_BYTES)
        if self.path in (SAMPLES, EVENTS):
            return tail(self.source, SAMPLES_BYTES)
        return self.source.read_bytes()


def record_files(out_dir: Path, driver_log: Path | None) -> list[RecordFile]:
    """Return what a record takes of a run's folder, and the driver's log."""
    found = [
        (path.relative_to(out_dir).as_posix(), path) for pattern in FILES for path in sorted(out_dir.glob(pattern))
    ]
    logs = [named for named in found if named[0].startswith("logs/")]
    too_many = set(logs[MOST_LOGS:])
    if driver_log is not None:
        found.append((DRIVER_LOG, driver_log))
    files = []
    for path, source in found:
        if (path, source) not in too_many:
            with contextlib.suppress(FileNotFoundError):  # TensorBoard's files are replaced when a run starts
                stat = source.stat()
                files.append(RecordFile(path, source, stat.st_size, stat.st_mtime_ns))
    return files


def tail(path: Path, most_bytes: int) -> bytes:
    """Return a file's content; of a longer one its last lines, after a line that says how many bytes are left out."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most_bytes))
        data = file.read(most_bytes)
    if size <= most_bytes:
        return data
    data = data[data.find(b"\n") + 1 :]
    left_out = size - len(data)
    if path.suffix == ".jsonl":
        return json.dumps({"left_out_bytes": left_out}).encode() + b"\n" + data
    return f"[{left_out:,} bytes before this are left out: a record keeps the end of a log]\n".encode() + data


def standard_output() -> Path | None:
    """Return the file that this process prints to, as in a job of Ray's; None if it prints to a terminal or a pipe."""
    try:
        path = Path("/proc/self/fd/1").readlink()
    except OSError:
        return None
    return path if path.is_file() else None
