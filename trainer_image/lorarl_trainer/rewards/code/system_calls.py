"""Which system calls a completion's program may make: a seccomp filter, written as its BPF program.

Linux runs the filter at each system call, as any user and without a namespace. It has three answers:

    allow   what CPython and NumPy need to compute, to read files, and to talk to themselves
    refuse  everything else: the call fails, and a program may handle that
    kill    what no test needs: starting processes, network, signals to others, looking into other processes

https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence

MACHINE = "x86_64"
"""The only architecture whose system calls are listed here."""

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if true, the same if false, operand."""

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GREATER_OR_EQUAL, _JUMP_IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in seccomp_data
_AUDIT_ARCH_X86_64, _X32_BIT = 0xC000003E, 0x40000000
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

# fmt: off
_ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9,
    "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15,
    "pread64": 17, "readv": 19, "writev": 20, "access": 21, "pipe": 22, "select": 23, "sched_yield": 24,
    "mremap": 25, "madvise": 28, "dup": 32, "dup2": 33, "pause": 34, "nanosleep": 35, "getitimer": 36, "alarm": 37,
    "setitimer": 38, "getpid": 39, "sendto": 44, "recvfrom": 45, "sendmsg": 46, "recvmsg": 47, "shutdown": 48,
    "getsockname": 51, "getpeername": 52, "setsockopt": 54, "getsockopt": 55, "exit": 60, "wait4": 61, "uname": 63,
    "getcwd": 79, "chdir": 80, "fchdir": 81, "readlink": 89, "umask": 95, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "getppid": 110, "getpgrp": 111, "getgroups": 115, "getresuid": 118, "getresgid": 120, "getpgid": 121,
    "getsid": 124, "rt_sigpending": 127, "rt_sigtimedwait": 128, "rt_sigsuspend": 130, "sigaltstack": 131,
    "statfs": 137, "fstatfs": 138, "gettid": 186, "time": 201, "futex": 202, "sched_getaffinity": 204,
    "epoll_create": 213, "getdents64": 217, "set_tid_address": 218, "restart_syscall": 219, "fadvise64": 221,
    "clock_gettime": 228, "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232,
    "epoll_ctl": 233, "waitid": 247, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
    "ppoll": 271, "set_robust_list": 273, "get_robust_list": 274, "epoll_pwait": 281, "eventfd2": 290,
    "epoll_create1": 291, "dup3": 292, "pipe2": 293, "getcpu": 309, "getrandom": 318, "membarrier": 324,
    "statx": 332, "rseq": 334, "faccessat2": 439, "epoll_pwait2": 441,
}
_KILLED = {
    "shmget": 29, "shmat": 30, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "fork": 57,
    "vfork": 58, "execve": 59, "semget": 64, "msgget": 68, "ptrace": 101, "setuid": 105, "setgid": 106, "setpgid": 109,
    "setsid": 112, "setreuid": 113, "setregid": 114, "setgroups": 116, "setresuid": 117, "setresgid": 119,
    "setfsuid": 122, "setfsgid": 123, "capset": 126, "rt_sigqueueinfo": 129, "pivot_root": 155, "chroot": 161,
    "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
    "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176,
    "tkill": 200, "clock_settime": 227, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "accept4": 288, "rt_tgsigqueueinfo": 297, "perf_event_open": 298, "setns": 308,
    "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313,
    "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323, "pidfd_send_signal": 424,
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "pidfd_open": 434, "pidfd_getfd": 438,
    "memfd_secret": 447,
}
# fmt: on
_OPEN, _OPENAT, _OPENAT2, _IOCTL, _FCNTL = 2, 257, 437, 16, 72
_CLONE, _CLONE3, _KILL_CALL, _TGKILL, _SOCKET, _SOCKETPAIR, _PRLIMIT = 56, 435, 62, 234, 41, 53, 302
_CLONE_THREAD = 0x10000
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
_TERMINAL_AND_INHERITANCE = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_DESCRIPTORS_AND_FLAGS = (0, 1, 2, 3, 4, 1030)  # F_DUPFD F_GETFD F_SETFD F_GETFL F_SETFL F_DUPFD_CLOEXEC
_AF_UNIX, _SOCK_STREAM, _TYPE_FLAGS = 1, 1, 0o2004000


def bpf_program(process: int) -> list[Instruction]:
    """Return the filter for the process with this number, which may signal itself only."""
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_IF_EQUAL, 1, 0, _AUDIT_ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_GREATER_OR_EQUAL, 0, 1, _X32_BIT),
        (_RETURN, 0, 0, _KILL),
        *(step for number in _ALLOWED.values() for step in _if_call(number, [_answer(_ALLOW)])),
        *(step for number in _KILLED.values() for step in _if_call(number, [_answer(_KILL)])),
        # Landlock may be missing, and older ones know no truncation. So no file is ever opened for writing.
        *_if_call(_OPEN, _unless_bits(1, _TO_WRITE, _error(errno.EACCES))),
        *_if_call(_OPENAT, _unless_bits(2, _TO_WRITE, _error(errno.EACCES))),
        # These take their flags in memory, where a filter cannot look. libc falls back to the older calls.
        *_if_call(_OPENAT2, [_answer(_error(errno.ENOSYS))]),
        *_if_call(_CLONE3, [_answer(_error(errno.ENOSYS))]),
        # A thread is refused as where there are too many. Threads would count towards a limit of the trainer's pod.
        *_if_call(_CLONE, [*_argument(0), (_JUMP_IF_ANY_BIT, 1, 0, _CLONE_THREAD), *_kill_or(_error(errno.EAGAIN))]),
        *_if_call(_KILL_CALL, _if_among(0, [process], _KILL)),
        *_if_call(_TGKILL, _if_among(0, [process], _KILL)),
        *_if_call(_IOCTL, _if_among(1, _TERMINAL_AND_INHERITANCE, _error(errno.ENOTTY))),
        *_if_call(_FCNTL, _if_among(1, _DESCRIPTORS_AND_FLAGS, _error(errno.EINVAL))),
        # libc looks for its name service at such a socket, for example to find the home folder.
        *_if_call(_SOCKET, [*_argument(0), (_JUMP_IF_EQUAL, 1, 0, _AF_UNIX), *_kill_or(_error(errno.EACCES))]),
        *_if_call(_SOCKETPAIR, list(_stream_to_itself())),
        *_if_call(_PRLIMIT, list(_own_limits())),
        _answer(_error(errno.EPERM)),
    ]


def install(process: int) -> None:
    """Filter the calls of this thread from now on, without a way back.

    Raises:
        OSError: the kernel has no seccomp, or privileges can still be gained.
    """
    steps = bpf_program(process)
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0) != 0:
        code_of_error = ctypes.get_errno()
        raise OSError(code_of_error, f"seccomp: {os.strerror(code_of_error)}")


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _error(number: int) -> int:
    return _ERROR | number


def _argument(index: int, *, high: bool = False) -> list[Instruction]:
    """Load the low or the high half of an argument. The arguments looked at are 32 bits wide in the kernel."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * index + (4 if high else 0))]


def _if_call(number: int, block: Sequence[Instruction]) -> list[Instruction]:
    """Run a block, which ends with an answer on each way, if the call has this number, and skip it otherwise."""
    return [(_JUMP_IF_EQUAL, 0, len(block), number), *block]


def _kill_or(other: int) -> list[Instruction]:
    return [_answer(_KILL), _answer(other)]


def _unless_bits(argument: int, bits: int, refusal: int) -> list[Instruction]:
    return [*_argument(argument), (_JUMP_IF_ANY_BIT, 0, 1, bits), _answer(refusal), _answer(_ALLOW)]


def _if_among(argument: int, values: Sequence[int], refusal: int) -> list[Instruction]:
    steps = [step for value in values for step in ((_JUMP_IF_EQUAL, 0, 1, value), _answer(_ALLOW))]
    return [*_argument(argument), *steps, _answer(refusal)]


def _stream_to_itself() -> Iterator[Instruction]:
    """Allow a pair of connected sockets, which asyncio needs. Other kinds could send to sockets of other processes."""
    yield from _argument(0)
    yield from ((_JUMP_IF_EQUAL, 1, 0, _AF_UNIX), _answer(_KILL))
    yield from _argument(1)
    for flags in (0, _TYPE_FLAGS, _TYPE_FLAGS & 0o4000, _TYPE_FLAGS & 0o2000000):
        yield from ((_JUMP_IF_EQUAL, 0, 1, _SOCK_STREAM | flags), _answer(_ALLOW))
    yield _answer(_KILL)


def _own_limits() -> Iterator[Instruction]:
    """Allow to read this process's own limits."""
    yield from _argument(0)
    yield from ((_JUMP_IF_EQUAL, 1, 0, 0), _answer(_KILL))
    for high in (False, True):
        yield from _argument(2, high=high)
        yield from ((_JUMP_IF_EQUAL, 1, 0, 0), _answer(_error(errno.EPERM)))
    yield _answer(_ALLOW)
