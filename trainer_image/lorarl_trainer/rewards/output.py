"""Where the words of scoring processes go: what functions print, and what the user should know."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from lorarl_trainer.errors import LorarlError

MOST_BYTES = 16_000_000
"""How much of what functions print is kept, and once more as much of what was printed before."""
_CHECK_SECONDS = 1.0


def _to_stderr(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr, flush=True)


class Output:
    """Takes what the functions of a job print and warns of what is wrong. All of the job's scorers share it."""

    def __init__(
        self, log: Path | None = None, warn: Callable[[str], None] = _to_stderr, most_bytes: int = MOST_BYTES
    ) -> None:
        """Take output.

        `log`: gets what functions print, line by line; None for this process's own output.
        """
        self._log, self._warn, self._most_bytes = log, warn, most_bytes
        self._lock = threading.Lock()
        self._next_check = 0.0
        self._warned: set[str] = set()

    def open(self) -> contextlib.AbstractContextManager[BinaryIO | None]:
        """Open the log for a process. Raises LorarlError if it cannot be written."""
        if self._log is None:
            return contextlib.nullcontext()
        try:
            self._log.parent.mkdir(parents=True, exist_ok=True)
            return self._log.open("ab", buffering=0)
        except OSError as error:
            raise LorarlError(f"{self._log}, the log of the reward's output, cannot be written: {error}.") from error

    def trim(self) -> None:
        """Cut the log if it is large; looks at most once a second. Its last part is kept as NAME.1."""
        with self._lock:
            now = time.monotonic()
            if self._log is not None and now >= self._next_check:
                self._next_check = now + _CHECK_SECONDS
                with contextlib.suppress(OSError):  # a log is not worth a run
                    _cut(self._log, self._most_bytes)

    def warn_once(self, text: str) -> None:
        """Warn the user, unless the same was said before."""
        with self._lock:
            if text in self._warned:
                return
            self._warned.add(text)
        self._warn(text)


def _cut(log: Path, most_bytes: int) -> None:
    """Move the end of a large log to NAME.1. Processes that have it open in append mode write on at its beginning."""
    if log.stat().st_size <= most_bytes:
        return
    older = log.with_name(f"{log.name}.1")
    with contextlib.suppress(OSError), log.open("rb") as file, older.open("wb") as copy:
        file.seek(-most_bytes, os.SEEK_END)
        copy.write(file.read(most_bytes))
    os.truncate(log, 0)
    with log.open("a") as begun:
        begun.write(f"[lorarl cut this log at {most_bytes:,} bytes; what came before is in {older.name}]\n")
