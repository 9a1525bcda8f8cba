"""Ends all that a process has started, whatever session it is in. It needs the standard library only.

A process that calls `adopt_orphans` becomes the parent of each descendant whose parent has ended, so none is missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h


def adopt_orphans() -> None:
    """Make this process the parent of orphans among its descendants, in place of init."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(pid: int) -> None:
    """End what a process has started, and what that has started. The process itself is left as it is.

    Each is stopped before its children are looked up, so that it starts no more of them.
    """
    found = list(_children(pid))
    for one in found:  # which grows
        if _sent(one, signal.SIGSTOP):
            found += _children(one)
    for one in found:
        _sent(one, signal.SIGKILL)


def end_with_descendants(pid: int) -> None:
    """End a process that has not been waited for, and all that it has started."""
    if _sent(pid, signal.SIGSTOP):
        end_descendants(pid)
        _sent(pid, signal.SIGKILL)


def mark(name: str) -> None:
    """Mark what this process starts from now on, by a variable of its environment."""
    os.environ[name] = str(os.getpid())


def end_orphans(name: str, pid: int, others: Collection[int]) -> None:
    """End what a process has left, which has ended and has not been waited for: its group, and what it marked.

    `others`: children of this process that are like it, and are not looked at.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    marked = f"{name}={pid}".encode()
    for child in {*_children(os.getpid())} - {pid, *others}:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if marked in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                end_with_descendants(child)
                os.waitpid(child, 0)


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has just ended
                yield from map(int, (task / "children").read_text().split())


def _sent(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
