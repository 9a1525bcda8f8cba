"""Ends a group of processes some seconds after the process that started it: run as a program, by its path.

A server that is still starting may not heed the SIGTERM that it gets then, and its own processes get none. Only the
standard library is imported.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

_ROUND_SECONDS = 0.1
_LOOK_SECONDS = 1.0


def main(parent: int, group: int, seconds: float) -> None:
    """Wait for the parent's end, and then so long for that of the group, before it is killed."""
    handle = None
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(parent)
    is_there = os.getppid() == parent  # otherwise the number may be that of another process by now
    # The parent may be an actor. When one ends, Ray kills its children, but not what these have started.
    if os.fork():
        return
    with contextlib.suppress(ProcessLookupError):
        while handle is not None and is_there and not select.select([handle], [], [], _LOOK_SECONDS)[0]:
            os.killpg(group, 0)  # the group may end before the parent
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.killpg(group, 0)
            time.sleep(_ROUND_SECONDS)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
