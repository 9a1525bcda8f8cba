"""Takes rights away from this process: capabilities, files by Landlock, and resources.

All of it works as any user, without a namespace, and is inherited by every process that is forked later.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPSET, _CAPABILITY_VERSION_3 = 126, 0x20080522
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _WANT_VERSION = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_SIGKILL = 9

_libc = ctypes.CDLL(None, use_errno=True)


def drop_privileges() -> None:
    """Give up all capabilities, and the way to new ones. Raises OSError if the kernel refuses."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.syscall(_CAPSET, struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)), "capset")


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 if it has none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, 0, _WANT_VERSION))


def restrict_files(readable: Iterable[Path]) -> None:
    """Let this process read these files and folders, and nothing else. It can write nowhere.

    Where Landlock can, TCP, devices, and abstract sockets and signals to other processes are denied too.
    https://docs.kernel.org/userspace-api/landlock.html

    Raises:
        OSError: the kernel refuses.
    """
    version = landlock_version()
    files = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    network = 0b11 if version >= 4 else 0
    scopes = 0b11 if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _libc.syscall(_CREATE_RULESET, struct.pack("QQQ", files, network, scopes)[:size], size, 0)
    _check(rules, "Landlock")
    for path in readable:
        try:
            at = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        rights = _READ_FILE | (_READ_FOLDER if stat.S_ISDIR(os.fstat(at).st_mode) else 0)
        _check(_libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, at), 0), f"{path}")
        os.close(at)
    _check(_libc.syscall(_RESTRICT_SELF, rules, 0), "Landlock")
    os.close(rules)


def be_ended_first() -> None:
    """Have the kernel end this process before the trainer when memory runs out."""
    with contextlib.suppress(OSError):  # the trainer does not depend on it
        Path("/proc/self/oom_score_adj").write_text("1000")


def end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, and keep its memory from others.

    Raises:
        OSError: see `signal_at_parents_end`.
    """
    signal_at_parents_end(parent, _SIGKILL)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "PR_SET_DUMPABLE")


def signal_at_parents_end(parent: int, number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends.

    Raises:
        OSError: the parent, whose number is given, has ended already; or the kernel refuses it.
    """
    _check(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        raise ProcessLookupError(f"process {parent} has ended")  # before that call, which then does nothing


def limit_resources(memory_bytes: int, cpu_seconds: int) -> None:
    """Limit memory, computing time and open files; no file may grow.

    The number of processes is no resource here: RLIMIT_NPROC counts all processes of the user, also the trainer's.
    """
    _limit(resource.RLIMIT_AS, memory_bytes)
    _limit(resource.RLIMIT_CPU, cpu_seconds, grace=1)  # SIGXCPU at the limit, SIGKILL after it
    _limit(resource.RLIMIT_NOFILE, 32)
    for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE):
        _limit(kind, 0)


def _limit(kind: int, value: int, grace: int = 0) -> None:
    most = resource.getrlimit(kind)[1]
    soft, hard = (each if most == resource.RLIM_INFINITY else min(each, most) for each in (value, value + grace))
    resource.setrlimit(kind, (soft, hard))


def _check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
