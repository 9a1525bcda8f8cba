"""Copies what a process writes to its files into the log of its container, until the process has ended.

It runs as a separate program, by its path and with the standard library alone: so it is small, starts at once, and
also copies the last words of a process that crashed. Its standard output is the container's.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from pathlib import Path

POLL_MILLISECONDS = 500
_RAY_S_OWN = (b":job_id:", b":actor_name:", b":task_name:")
"""Beginnings of lines by which Ray's log monitor knows whose output follows."""
_CHUNK = 1 << 20


class Lines:
    """The whole lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        """The file must exist."""
        self._file = path.open("rb", buffering=0)
        self._begun = b""

    def new(self, *, ended: bool) -> list[bytes]:
        """Return the lines since the last call, and once its writer has ended also a last line that is not whole."""
        found: list[bytes] = []
        while chunk := self._file.read(_CHUNK):
            *whole, self._begun = (self._begun + chunk).split(b"\n")
            found += whole
        if ended and self._begun:
            found.append(self._begun)
            self._begun = b""
        return [_shown(line) for line in found if not line.startswith(_RAY_S_OWN)]


def _shown(line: bytes) -> bytes:
    """A progress bar draws itself again and again after carriage returns; the last one counts."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def follow(name: str, descriptor: int, files: list[Lines]) -> None:
    """Print the lines of these files, each after `[name]`, until the process of this descriptor has ended.

    Raises:
        OSError: standard output is no longer read.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    ended = False
    while not ended:
        # What was written before the end is there after it.
        ended = bool(waiting.poll(POLL_MILLISECONDS))
        for file in files:
            for line in file.new(ended=ended):
                _write(b"[%s] %s\n" % (name.encode(), line))


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def main() -> None:
    """Continue in the background: NAME PROCESS-ID FILE..."""
    name, process, *paths = sys.argv[1:]
    # The process waits for this one to leave. Later it may be gone before its output is looked at.
    descriptor, files = os.pidfd_open(int(process)), [Lines(Path(path)) for path in paths]
    if os.fork():
        os._exit(0)  # Ray ends the children of a worker that ends; this one has another parent now
    os.setsid()
    with suppress(OSError):
        follow(name, descriptor, files)


if __name__ == "__main__":
    main()
