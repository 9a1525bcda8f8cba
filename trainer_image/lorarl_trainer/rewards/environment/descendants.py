"""Ends all that a process has started, whatever session it is in. It needs the standard library only.

A process that calls `adopt_orphans` becomes the parent of each descendant whose parent has ended, so none is missed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_EXITING = 0x4  # of linux/sched.h


def adopt_orphans() -> None:
    """Make this process the parent of orphans among its descendants, in place of init."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(pid: int) -> list[int]:
    """End what a process has started, and what that has started. The process itself is left as it is.

    Each is stopped before its children are looked up, so that it starts no more of them.

    Returns:
        The ids of those that it could end, each behind that of its parent.
    """
    found = list(_children(pid))
    for one in found:  # which grows
        if _sent(one, signal.SIGSTOP):
            found += _children(one)
    return [one for one in found if _sent(one, signal.SIGKILL)]


def end_with_descendants(pid: int) -> list[int]:
    """End a process that has not been waited for, and all that it has started. Returns ids as `end_descendants`."""
    _sent(pid, signal.SIGSTOP)
    found = end_descendants(pid)
    return [pid, *found] if _sent(pid, signal.SIGKILL) else found


def wait_for_all(pids: Iterable[int]) -> None:
    """Wait for processes that were ended, so that none stays as a zombie. Parents come before their children.

    Those that became no child of this process, when their parent had been waited for, are not its concern.
    """
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def mark(name: str) -> None:
    """Mark what this process starts from now on, by a variable of its environment."""
    os.environ[name] = str(os.getpid())


def end_orphans(name: str, pid: int, others: Collection[int]) -> None:
    """End what a process has left, which has ended and has not been waited for: its group, and what it marked.

    All children of this process that have ended are waited for, so that none stays as a zombie.

    `others`: further children of this process, which are not looked at.
    """
    marked, seen = f"{name}={pid}".encode(), {pid, *others}
    while left := {child for child in children_here() - seen if _is_ending(child) or marked in _environment(child)}:
        for child in left:
            wait_for_all(end_with_descendants(child))
        seen |= left  # others may have become children of this process meanwhile
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def children_here() -> set[int]:
    """Return the children of this process."""
    return set(_children(os.getpid()))


def _is_ending(pid: int) -> bool:
    """Return whether a process has ended, or does so now: it has no environment any more."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return state == "Z" or bool(int(fields[5]) & _EXITING)


def _environment(pid: int) -> Collection[bytes]:
    """Return the variables of a process as NAME=VALUE; none if it has ended, or is another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ()


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
